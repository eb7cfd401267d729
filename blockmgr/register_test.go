package blockmgr

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestRegisterIsAllOrNothing(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8), MaxPinsPerSession: 2})
	others := p.begin()
	good := p.allocate(2)
	p.prepare(good, chain(1, 2))
	partial := p.allocate(1)[0]
	noError(t, partial.InitSequence(Root{}))
	released := p.allocate(1)[0]
	released.Release()
	third := p.allocate(1)
	p.prepare(third, chain(2, 1))
	theirs, err := p.Allocate(others, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.prepare(theirs, chain(3, 1))
	filling, err := p.Grant(others, chain(4, 1), 0)
	if err != nil || len(filling.Grants) != 1 {
		t.Fatal(err)
	}
	taken := p.allocate(1)
	p.prepare(taken, chain(4, 1))
	for name, c := range map[string]struct {
		blocks []*MutableBlock
		want   error
	}{
		"nothing":                 {nil, ErrNoBlocks},
		"a partial block":         {[]*MutableBlock{good[0], partial}, ErrBlockState},
		"a released block":        {[]*MutableBlock{good[0], released}, ErrBadSlot},
		"a block twice":           {[]*MutableBlock{good[0], good[0]}, ErrBadSlot},
		"another session's block": {[]*MutableBlock{good[0], theirs[0]}, ErrBadSlot},
		"more than can be pinned": {[]*MutableBlock{good[0], good[1], third[0]}, ErrPins},
		"what is being filled":    {[]*MutableBlock{good[0], taken[0]}, ErrFilling},
	} {
		if _, err := p.Register(p.sid, c.blocks); !errors.Is(err, c.want) {
			t.Errorf("register of %s: %v, want %v", name, err, c.want)
		}
	}
	if st := p.Stats(); st.Blocks != 1 || st.Pins != 0 || st.Committed != 0 || good[0].State() != BlockComplete {
		t.Errorf("a refused call has left something: %+v", st)
	}
	noError(t, p.Abort(others, []Slot{filling.Grants[0].Slot}))
	handles, err := p.Register(p.sid, []*MutableBlock{good[0], taken[0]})
	if err != nil {
		t.Errorf("after the other grant was given up: %v", err)
	}
	release(handles)
	p.quiesce()
}

func TestRegisterWaitsForTheReadOfTheSameBlock(t *testing.T) {
	gate := &storagetest.Gate{}
	p := diskPool(t, func(cfg *Config) { cfg.WrapDisk = stallReads(gate) })
	blocks := chain(1, 1)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	allocated := p.allocate(1)
	p.prepare(allocated, blocks)
	if n := p.Prefetch(blocks); n != 1 {
		t.Fatalf("%d reads", n)
	}
	waitFor(t, func() bool { return gate.Waiting() == 1 })
	registered := make(chan []*ImmutableBlock)
	go func() {
		handles, err := p.Register(p.sid, allocated)
		if err != nil {
			t.Errorf("register: %v", err)
		}
		registered <- handles
	}()
	waitFor(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		f := p.mover.Flight(p.slots.HostSlot(&blocks[0].Key))
		return f != nil && f.Waiters == 1
	})
	gate.Open()
	handles := <-registered
	if st := p.Stats(); st.Deduplicated != 1 || st.Host.Granted != 0 || !handles[0].Valid() {
		t.Errorf("%+v", st)
	}
	release(handles)
	p.quiesce()
}

// Sessions that bring in, find and throw away the same few blocks at once never
// see wrong bytes, and no slot is lost.
func TestHandlesOfManySessionsAtOnce(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(24), DiskBytes: 48 * testSlotBytes})
	var wg sync.WaitGroup
	for worker := range uint64(4) {
		wg.Go(func() {
			s := p.begin()
			defer p.EndSession(s, nil)
			for round := range uint64(100) {
				p.useHandles(t, s, chain(1+(worker+round)%6, 4))
				switch round % 8 {
				case 3:
					p.Prefetch(chain(1+round%6, 4))
				case 5:
					_, _ = p.ResetBlocks(kv.TierHost, []kv.SequenceHash{chain(1+round%6, 1)[0].Seq})
				case 7:
					_ = p.Reset(kv.TierHost) // refused, or not
				}
			}
		})
	}
	wg.Wait()
	p.quiesce()
	if st := p.Stats(); st.Host.Granted+st.Host.Staging+st.Host.Quarantined+st.Host.Active+st.Pins != 0 || st.CorruptReads != 0 {
		t.Errorf("%+v", st)
	}
}

// useHandles registers blocks and looks at them and at what a match finds.
func (p *testPool) useHandles(t *testing.T, s SessionID, blocks []Block) {
	allocated, err := p.Allocate(s, len(blocks))
	if err != nil {
		return // the others have the slots
	}
	p.prepare(allocated, blocks)
	handles, err := p.Register(s, allocated)
	if errors.Is(err, ErrFilling) {
		release(allocated)
	} else if err != nil {
		t.Errorf("register: %v", err)
	}
	found, err := p.Match(t.Context(), s, blocks)
	if err != nil {
		t.Errorf("match: %v", err)
	}
	for _, h := range append(handles, found...) {
		if b := h.Block(); !bytes.Equal(h.Data(), p.content(&b, 0)) {
			t.Errorf("session %d: wrong bytes of %s", s, h.Key())
		}
		h.Release()
	}
}
