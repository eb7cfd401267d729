package registry

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// The router tells the registry which announcements it accepted. So Source.owners and
// Source.publishers have no publisher that the router refused.

// connectionChanged records whether a source is connected. The silence of a disconnected source
// does not count as silence of its publishers.
func (r *Source) connectionChanged(source int, connected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !connected {
		r.disconnected[source] = true
		return
	}
	delete(r.disconnected, source)
	// The source was silent, not its publishers: their timeouts begin again.
	for o, s := range r.owners {
		if s.source == source {
			s.seenAt = time.Now()
			r.owners[o] = s
		}
	}
}

// SnapshotSource implements source.Joiner. It returns the number of the first Resumer.
func (r *Source) SnapshotSource() int {
	for i, t := range r.transports {
		if _, ok := t.(source.Resumer); ok {
			return i + 1
		}
	}
	return 0
}

// Announced implements source.Joiner. It records which publisher announces which owner, and over
// which source. So the registry knows where to send queries, and which registered workers need no
// announcement.
func (r *Source) Announced(source int, a *kvevent.Announcement, accepted bool) {
	if source == 0 {
		return // announced by the registry itself
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	current, known := r.owners[a.Owner]
	if !accepted {
		delete(r.publishers, a.PublisherID)
		if known && current.publisher == a.PublisherID {
			delete(r.owners, a.Owner)
		}
		return
	}
	switch {
	case known && current.publisher != a.PublisherID: // the owner has a new publisher
		delete(r.publishers, current.publisher)
	case !known && len(r.owners) >= maxOwners:
		return // more owners than a router accepts
	}
	r.publishers[a.PublisherID] = source
	r.owners[a.Owner] = ownerPublisher{publisher: a.PublisherID, source: source, seenAt: time.Now()}
	if e := r.entries[a.Owner.Worker()]; e != nil && a.Owner.Kind == kv.OwnerWorker {
		// The router follows this publisher now and fences the registered one. So the rank
		// needs a new publisher id before the registry may announce it again.
		e.publisher = 0
	}
}
