package registry

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// The router tells the registry which announcements it accepted. A publisher that the
// router refuses has no owner here.

// connectionChanged notes that a source is connected (up) or disconnected.
func (r *Source) connectionChanged(source int, up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !up {
		r.away[source] = true
		return
	}
	delete(r.away, source)
	// The source was away, not its publishers.
	for o, s := range r.owners {
		if s.source == source {
			s.seen = time.Now()
			r.owners[o] = s
		}
	}
}

// SnapshotSource implements source.Joiner.
func (r *Source) SnapshotSource() int {
	for i, t := range r.inner {
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
	have, known := r.owners[a.Owner]
	if !taken {
		delete(r.publishers, a.PublisherID)
		if known && have.publisher == a.PublisherID {
			delete(r.owners, a.Owner)
		}
		return
	}
	switch {
	case known && have.publisher != a.PublisherID:
		delete(r.publishers, have.publisher)
	case !known && len(r.owners) >= maxOwners:
		return // more owners than a router accepts
	}
	r.publishers[a.PublisherID] = source
	r.owners[a.Owner] = ownerPublisher{publisher: a.PublisherID, source: source, seen: time.Now()}
	if e := r.entries[a.Owner.Worker()]; e != nil && a.Owner.Kind == kv.OwnerWorker {
		// The publisher ended the registered one. A later registration gets a new id.
		e.publisher = 0
	}
}
