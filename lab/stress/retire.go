package stress

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// retire closes the pool of a namespace whose engines have all said goodbye, unless
// the workers of one that died go on. Nothing that it had may come back; but extents
// that it could not read, or had not yet, are still on the disk.
func (w *world) retire(o *operation) error {
	space := o.n % len(w.spaces)
	pool := w.pools[space]
	if pool == nil {
		return nil
	}
	for _, c := range w.clients {
		if c.space == space && c.session != 0 {
			if err := w.end(c, pool); err != nil {
				return err
			}
		}
	}
	// Stuck operations on the disk may keep it busy; then it is left alone.
	if err := w.settle(pool); err != nil && !w.v.faulty() {
		return err
	}
	left := w.v.faulty() || pool.Stats().DiskJoining
	gone, err := pool.Retire()
	if errors.Is(err, blockmgr.ErrActive) {
		return w.audit()
	}
	if err != nil {
		return err
	}
	select {
	case <-gone:
	case <-time.After(waitTime):
		return fmt.Errorf("pool %s is not gone after %v", pool.NamespaceID(), waitTime)
	}
	w.pools[space] = nil
	w.total.Retired++
	if err := w.ledger.retired(w.spaces[space].id, left); err != nil {
		return err
	}
	return w.audit()
}

// retired says that the pool of a namespace was closed with all that it had. With
// left there may be something on the disk that it did not have.
func (l *ledger) retired(ns kv.NamespaceID, left bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.resident {
		if at.ns == ns {
			return fmt.Errorf("block %s is still in %s after its pool was closed", at.key, at.tier)
		}
	}
	delete(l.opened, ns)
	delete(l.joining, ns)
	delete(l.exact, ns)
	maps.DeleteFunc(l.lastHost, func(at place, _ *content) bool { return at.ns == ns })
	maps.DeleteFunc(l.comeback, func(at place, _ *content) bool { return at.ns == ns })
	for at, nonces := range l.past {
		if left && at.ns == ns {
			l.comeback[at] = &content{slices.Clone(nonces)}
		}
	}
	return l.broken
}
