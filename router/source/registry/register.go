package registry

import (
	"errors"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/router/source"
)

// minTTL and maxTTL bound the time that a registration holds.
const minTTL, maxTTL = time.Second, time.Hour

// ErrConflict is wrapped by errors of registrations that contradict others.
var ErrConflict = errors.New("conflict")

// Register announces a worker for a time. A later call for the same worker renews it; a
// worker with fewer ranks than before loses the others. The error names the field.
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
		r.updateLocked(w, g, source.FromHTTP, time.Now().Add(ttl))
	}
	for w, e := range r.entries {
		if uint64(w.ID) == g.WorkerID && uint32(w.Rank) >= g.ranks() {
			e.ended = true
		}
	}
	return nil
}

// Unregister ends the registration of a worker; false when it has none. It does not end
// a registration of the file.
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

// Announce announces one worker now, after Register or Unregister.
func (r *Source) Announce(worker uint64) { r.sendAnnouncements(worker, time.Now()) }
