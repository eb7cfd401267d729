package index

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Replace makes events, all of them stores of owner, everything that owner
// holds. They may come in any order. Readers see the old blocks or, from one
// moment on, the new ones. The error is ErrFull or names what is not valid, and
// then nothing has changed.
func (x *Index) Replace(who kv.Owner, events []kvevent.RouterEvent) error {
	for i := range events {
		if err := check(&events[i]); err != nil {
			return err
		}
		if events[i].Owner != who || events[i].Kind != kvevent.Stored {
			return fmt.Errorf("dump of %s: event %d is %s of %s", who, i, events[i].Kind, events[i].Owner)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	old, err := x.open(who)
	if err != nil {
		return err
	}
	// The new blocks gather under an id that no reader knows yet.
	fresh := x.newOwner(who)
	x.replacing = true
	for i := range events {
		x.store(fresh, &events[i])
		x.tidy()
	}
	x.replacing = false
	x.dropParked()
	fresh.publishHeld()
	x.supplant(old, fresh)
	x.tidy()
	return nil
}
