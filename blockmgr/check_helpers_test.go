package blockmgr

import (
	"sync"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// fataler is what *testing.T and *rapid.T have in common here.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// noError ends the test at an error.
func noError(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// orderSink checks that stores and removals alternate for every block and tier.
type orderSink struct {
	t fataler

	mu       sync.Mutex
	resident map[sinkKey]Block
	// stores are all stores in their order.
	stores []sinkKey
}

type sinkKey struct {
	ns   kv.NamespaceID
	tier kv.Tier
	key  kv.StoredKey
}

func newOrderSink(t fataler) *orderSink { return &orderSink{t: t, resident: map[sinkKey]Block{}} }

func (s *orderSink) BlockStored(ns kv.NamespaceID, tier kv.Tier, b Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sinkKey{ns, tier, b.Key}
	if _, ok := s.resident[k]; ok {
		s.t.Errorf("%s stored in %s twice", b.Key, tier)
	}
	s.resident[k] = b
	s.stores = append(s.stores, k)
}

func (s *orderSink) BlockRemoved(ns kv.NamespaceID, tier kv.Tier, b Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sinkKey{ns, tier, b.Key}
	if was, ok := s.resident[k]; !ok || was != b {
		s.t.Errorf("%s removed from %s, resident %v", b.Key, tier, ok)
	}
	delete(s.resident, k)
}

// check compares the tiers' counters with their slots and with the capacity.
func (p *testPool) check() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return
	}
	if err := p.slots.Check(); err != nil {
		p.t.Errorf("%v", err)
	}
	if t := p.slots.Host; t != nil {
		t.Each(func(ref registry.Ref, s *tier.Slot) { p.checkPins(t, ref, s) })
		p.checkPinCounts()
	}
}

// checkPins compares a host slot's pin word, and its number of pins, with what
// the sessions have.
func (p *testPool) checkPins(t *tier.Tier, ref registry.Ref, s *tier.Slot) {
	p.t.Helper()
	var pins uint32
	var word uint64
	for _, sess := range p.members.sessions {
		if n := sess.pins.of(ref); n > 0 {
			pins += n
			word |= sess.bit
		}
	}
	for _, f := range p.members.previous {
		if _, ok := f.pinned[ref]; ok {
			word |= f.bit
		}
	}
	part, i := t.At(ref)
	if pins != s.Pins || part.Records.Pins(i) != word {
		p.t.Errorf("slot %d has %d pins and word %#x, its sessions %d and %#x", ref, s.Pins, part.Records.Pins(i), pins, word)
	}
}

// checkEvents compares what the sink was told with a dump.
func (p *testPool) checkEvents() {
	p.t.Helper()
	p.mu.Lock()
	closed := p.life.closed
	p.mu.Unlock()
	if closed { // Dump lists nothing
		return
	}
	waitFor(p.t, func() bool { return p.Stats().Unannounced == 0 })
	dump := p.Dump()
	p.sink.mu.Lock()
	defer p.sink.mu.Unlock()
	n := 0
	for _, b := range dump {
		for _, tier := range kv.Tiers {
			if !b.Tiers.Has(tier) {
				continue
			}
			n++
			if told, ok := p.sink.resident[sinkKey{p.id, tier, b.Block.Key}]; !ok || told != b.Block {
				p.t.Errorf("%s in %s: the sink was told %v", b.Block.Key, tier, ok)
			}
		}
	}
	for k := range p.sink.resident {
		if k.ns == p.id {
			n--
		}
	}
	if n != 0 {
		p.t.Errorf("the pool has %d blocks more than the sink was told of", n)
	}
}

// checkPinCounts compares the counts of pinned slots with the sessions.
func (p *testPool) checkPinCounts() {
	p.t.Helper()
	for id, sess := range p.members.sessions {
		slots := 0
		sess.pins.each(func(registry.Ref, uint32) { slots++ })
		if slots != sess.slots {
			p.t.Errorf("session %d has %d slots pinned, counted %d", id, slots, sess.slots)
		}
	}
}
