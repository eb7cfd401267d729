package registry

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// The router tells the registry which announcements it accepted. So Source.owners and
// Source.publishers have no publisher that the router refused.

// connectionChanged notes that a source is connected (up) or disconnected.
func (r *Source) connectionChanged(source int, up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !up {
		r.disconnected[source] = true
		return
	}
	delete(r.disconnected, source)
	// The silence was that of the source, not of its publishers.
	for o, s := range r.owners {
		if s.source == source {
			s.seen = time.Now()
			r.owners[o] = s
		}
	}
}

// SnapshotSource implements source.Joiner. It returns the number of the first transport that
// keeps messages.
func (r *Source) SnapshotSource() int {
	for i, t := range r.transports {
		if _, ok := t.(source.Resumer); ok {
			return i + 1
		}
	}
	return 0
}

// Announced implements source.Joiner. It updates which publisher has which owner.
func (r *Source) Announced(source int, a *kvevent.Announcement, taken bool) {
	if source == 0 {
		return // announced by the registry itself
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	current, known := r.owners[a.Owner]
	if !taken {
		delete(r.publishers, a.PublisherID)
		if known && current.publisher == a.PublisherID {
			delete(r.owners, a.Owner)
		}
		return
	}
	switch {
	case known && current.publisher != a.PublisherID:
		delete(r.publishers, current.publisher)
	case !known && len(r.owners) >= maxOwners:
		return // more owners than a router accepts
	}
	r.publishers[a.PublisherID] = source
	r.owners[a.Owner] = ownerPublisher{publisher: a.PublisherID, source: source, seen: time.Now()}
	if e := r.entries[a.Owner.Worker()]; e != nil && a.Owner.Kind == kv.OwnerWorker {
		// The router follows this publisher now and fences the registered one. So the rank
		// needs a new publisher id before the registry may announce it again.
		e.publisher = 0
	}
}
