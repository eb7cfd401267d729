package registry

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// What a registry knows of the publishers of the transports that it joins it has
// from the router, which says what became of their announcements: one that the
// router refuses speaks for nobody.

// connection notes that a source came or went.
func (r *Source) connection(source int, up bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !up {
		r.away[source] = true
		return
	}
	delete(r.away, source)
	// The silence was ours.
	for o, s := range r.spoken {
		if s.source == source {
			s.seen = time.Now()
			r.spoken[o] = s
		}
	}
}

// SnapshotSource is the source whose position the router resumes at; 0 without one.
func (r *Source) SnapshotSource() int {
	for i, t := range r.inner {
		if _, ok := t.(source.Resumer); ok {
			return i + 1
		}
	}
	return 0
}

// Announced notes whether the router has taken in an announcement, and so who speaks
// for whom. It must not wait for the router.
func (r *Source) Announced(source int, a *kvevent.Announcement, taken bool) {
	if source == 0 {
		return // said here
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have, known := r.spoken[a.Owner]
	if !taken {
		delete(r.publishers, a.PublisherID)
		if known && have.publisher == a.PublisherID {
			delete(r.spoken, a.Owner)
		}
		return
	}
	switch {
	case known && have.publisher != a.PublisherID:
		delete(r.publishers, have.publisher)
	case !known && len(r.spoken) >= maxSpoken:
		return // more than a router takes in
	}
	r.publishers[a.PublisherID] = source
	r.spoken[a.Owner] = speaker{publisher: a.PublisherID, source: source, seen: time.Now()}
	if e := r.entries[a.Owner.Worker()]; e != nil && a.Owner.Kind == kv.OwnerWorker {
		// The router has ended it; what comes after is another one.
		e.publisher = 0
	}
}
