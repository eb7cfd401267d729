package registry

import (
	"errors"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/router/source"
)

// minTTL and maxTTL bound the life of a registration.
const minTTL, maxTTL = time.Second, time.Hour

// ErrConflict marks the error of a registration that contradicts another one.
var ErrConflict = errors.New("conflict")

// Register registers a worker for ttl. A later call for the same worker renews the
// registration. Ranks that the later call does not name lose their registration. The error
// names the field.
func (r *Source) Register(g *Registration, ttl time.Duration) error {
	err := g.Validate()
	if err == nil && (ttl < minTTL || ttl > maxTTL) {
		err = fmt.Errorf("ttl_seconds: %v is not in %v..%v", ttl.Seconds(), minTTL.Seconds(), maxTTL.Seconds())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if err = r.checkRegistrationLocked(g, source.FromHTTP); err != nil {
			err = fmt.Errorf("%w: %w", ErrConflict, err)
		}
	}
	if err != nil {
		r.stats.Refusals++
		return err
	}
	r.stats.Registrations++
	for _, w := range g.workers() {
		r.upsertLocked(w, g, source.FromHTTP, time.Now().Add(ttl))
	}
	for w, e := range r.entries {
		if uint64(w.ID) == g.WorkerID && !g.hasRank(w.Rank) {
			e.ended = true
		}
	}
	return nil
}

// Unregister ends the registration of a worker over HTTP, and reports whether there was
// one. Workers of the file stay.
func (r *Source) Unregister(worker uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	for w, e := range r.entries {
		if uint64(w.ID) == worker && e.source == source.FromHTTP && !e.ended {
			e.ended, found = true, true
		}
	}
	return found
}

// Announce announces one worker at once. Call it after Register or Unregister.
func (r *Source) Announce(worker uint64) { r.sendAnnouncements(worker, time.Now()) }

// AnnounceSoon has the registry announce all workers before its period ends. It does not
// wait.
func (r *Source) AnnounceSoon() {
	select {
	case r.soon <- struct{}{}:
	default:
	}
}
