package blockmgr

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// The tests of this file are the behaviours of KVBM's pools that an embedding
// program may count on, and what it does better, one by one.

// matched is how many blocks a match finds, which it lets go again.
func (p *testPool) matched(t *testing.T, blocks []Block) int {
	t.Helper()
	handles := p.match(t, blocks)
	release(handles)
	return len(handles)
}

func TestEvictionOfAChainGoesFromItsEnd(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	a := chain(1, 4)
	release(p.register(a))
	p.quiesce()
	p.allocate(1)
	if got := p.tiersOf(a); got != "HHH-" || p.matched(t, a) != 3 {
		t.Errorf("after allocate(1): resident %q", got)
	}
	p.allocate(2)
	if got := p.tiersOf(a); got != "H---" || p.matched(t, a) != 1 {
		t.Errorf("after allocate(2) more: resident %q", got)
	}
}

func TestAllocationOfSeveralLeavesThePrefix(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	a := chain(1, 4)
	release(p.register(a))
	p.quiesce()
	release(p.allocate(1))
	if n := p.matched(t, a); n != 3 {
		t.Errorf("allocate(1) leaves %d", n)
	}
	release(p.allocate(2))
	if n := p.matched(t, a); n != 2 {
		t.Errorf("allocate(2) leaves %d", n)
	}
}

// fork is a block and two that come after it.
func fork() (root, left, right Block) {
	root = chain(1, 1)[0]
	id := NewIdentifier()
	return root, id.Next(&root, blockTokens(1)), id.Next(&root, blockTokens(2))
}

func TestParentIsEvictedAfterBothItsChildren(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(3)})
	root, left, right := fork()
	release(p.register([]Block{root, left, right}))
	p.quiesce()
	blocks := []Block{root, left, right}
	for i, want := range []string{"H-H", "H--", "---"} {
		if i == 1 {
			// However recent the child that is left.
			p.Touch([]kv.StoredKey{right.Key})
		}
		p.allocate(1)
		if got := p.tiersOf(blocks); got != want {
			t.Errorf("after %d evictions: %q, want %q", i+1, got, want)
		}
	}
}

func TestMatchAndReleaseMakeABlockTheNewest(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(3)})
	for seed := range uint64(3) {
		release(p.register(chain(seed, 1)))
	}
	p.quiesce()
	if n := p.matched(t, chain(0, 1)); n != 1 {
		t.Fatalf("%d found", n)
	}
	p.allocate(2)
	if p.matched(t, chain(0, 1)) != 1 || p.matched(t, chain(1, 1))+p.matched(t, chain(2, 1)) != 0 {
		t.Error("the block that was matched last has gone before others")
	}
}

func TestMatchAndReleaseOfAChainKeepItsOrder(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	a := chain(1, 4)
	release(p.register(a))
	p.quiesce()
	for _, n := range []int{4, 2, 1} {
		p.matched(t, a[:n])
	}
	p.allocate(2)
	if got := p.tiersOf(a); got != "HH--" {
		t.Errorf("resident %q", got)
	}
}

func TestTouchChangesTheVictim(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	old, young := chain(1, 1), chain(2, 1)
	release(p.register(old))
	release(p.register(young))
	p.quiesce()
	if n := p.Touch([]kv.StoredKey{old[0].Key}); n != 1 {
		t.Errorf("%d touched", n)
	}
	p.allocate(1)
	if got := p.tiersOf([]Block{old[0], young[0]}); got != "H-" {
		t.Errorf("resident %q", got)
	}
}

func TestLowerPriorityIsEvictedFirstHoweverRecent(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(3)})
	blocks := []Block{chain(1, 1)[0], chain(2, 1)[0], chain(3, 1)[0]}
	for i, priority := range []uint32{2, 1, 0} {
		allocated := p.allocate(1)
		p.prepare(allocated, blocks[i:])
		allocated[0].SetPriority(priority)
		handles, err := p.Register(p.sid, allocated)
		if err != nil {
			t.Fatal(err)
		}
		release(handles)
	}
	p.quiesce()
	for _, want := range []string{"HH-", "H--"} {
		p.allocate(1)
		if got := p.tiersOf(blocks); got != want {
			t.Errorf("resident %q, want %q", got, want)
		}
	}
}

func TestPriorityIsZeroAfterAllocationAndAfterReset(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	high := p.allocate(1)[0]
	high.SetPriority(9)
	if err := high.Reset(); err != nil {
		t.Fatal(err)
	}
	other := p.allocate(1)[0]
	other.SetPriority(4) // it ages with every two blocks
	p.prepare([]*MutableBlock{high, other}, []Block{chain(1, 1)[0], chain(2, 1)[0]})
	// The one that was reset is registered later and yet goes first.
	for _, b := range []*MutableBlock{other, high} {
		handles, err := p.Register(p.sid, []*MutableBlock{b})
		if err != nil {
			t.Fatal(err)
		}
		release(handles)
	}
	p.quiesce()
	again := p.allocate(1)[0]
	if got := p.tiersOf([]Block{chain(1, 1)[0], chain(2, 1)[0]}); got != "-H" {
		t.Errorf("resident %q", got)
	}
	p.prepare([]*MutableBlock{again}, chain(3, 1))
	handles, err := p.Register(p.sid, []*MutableBlock{again})
	if err != nil {
		t.Fatal(err)
	}
	release(handles)
	p.quiesce()
	p.allocate(1)
	if got := p.tiersOf([]Block{chain(3, 1)[0], chain(2, 1)[0]}); got != "-H" {
		t.Errorf("a slot passes its priority on: resident %q", got)
	}
}

func TestAllocationOfTooManyChangesNothing(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(6)})
	blocks := chain(1, 4)
	handles := p.register(blocks)
	// The second block is held, so that only the two after it can go.
	release([]*ImmutableBlock{handles[0], handles[2], handles[3]})
	p.quiesce()
	before, told := p.Stats(), p.sink.told()
	_, err := p.Allocate(p.sid, 5)
	if !errors.Is(err, ErrNotEnoughBlocks) || !strings.Contains(err.Error(), "5 blocks requested, 4 available") {
		t.Errorf("5 blocks: %v", err)
	}
	if _, err := p.Allocate(p.sid, -1); err == nil {
		t.Error("-1 blocks are allocated")
	}
	if after := p.Stats(); after != before || p.sink.told() != told {
		t.Errorf("%+v, was %+v", after, before)
	}
	p.check()
	if none := p.allocate(0); len(none) != 0 {
		t.Error("0 blocks are some")
	}
	p.allocate(4)
	if got := p.tiersOf(blocks); got != "HH--" {
		t.Errorf("resident %q", got)
	}
	handles[1].Release()
}

// told is how much a sink has heard.
type told struct{ stores, resident int }

func (s *orderSink) told() told {
	s.mu.Lock()
	defer s.mu.Unlock()
	return told{len(s.stores), len(s.resident)}
}

// refusingFilter counts the offers of blocks to the disk and refuses them.
type refusingFilter struct{ offers atomic.Int64 }

func (f *refusingFilter) ShouldOffload(kv.SequenceHash) bool {
	f.offers.Add(1)
	return false
}

func TestSecondRegistrationOfAnActiveBlockGivesTheFirst(t *testing.T) {
	filter := &refusingFilter{}
	p := diskPool(t, func(cfg *Config) { cfg.Filter = filter })
	block := chain(1, 1)
	first := p.register(block)[0]
	p.quiesce()
	free, told, offers := p.Stats().Host.Free, p.sink.told(), filter.offers.Load()
	second := p.register(block)[0]
	if second.Slot() != first.Slot() || p.Stats().Deduplicated != 1 {
		t.Errorf("slot %v, then %v", first.Slot(), second.Slot())
	}
	if got := p.Stats().Host.Free; got != free {
		t.Errorf("%d slots free, want %d", got, free)
	}
	if p.sink.told() != told || filter.offers.Load() != offers {
		t.Errorf("told %+v, then %+v, %d more offers to the disk", told, p.sink.told(), filter.offers.Load()-offers)
	}
	first.Release()
	if !second.Valid() {
		t.Error("both handles share one pin")
	}
	second.Release()
}

func TestTwoBlocksOfOneKeyInOneRegistrationBecomeOne(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	block := chain(1, 1)[0]
	handles := p.register([]Block{block, block})
	if handles[0].Slot() != handles[1].Slot() || p.sink.told().stores != 1 || p.Stats().Pins != 2 {
		t.Errorf("%v and %v, told %+v", handles[0].Slot(), handles[1].Slot(), p.sink.told())
	}
	release(handles)
	p.quiesce()
}

func TestRegistrationOfAnInactiveBlockRevivesIt(t *testing.T) {
	filter := &refusingFilter{}
	p := diskPool(t, func(cfg *Config) { cfg.Filter = filter })
	block := chain(1, 1)
	first := p.register(block)[0]
	first.Release()
	p.quiesce()
	told, offers := p.sink.told(), filter.offers.Load()
	second := p.register(block)[0]
	if second.Slot() != first.Slot() || first.Valid() || !second.Valid() || p.sink.told() != told {
		t.Errorf("slot %v, then %v, told %+v, then %+v", first.Slot(), second.Slot(), told, p.sink.told())
	}
	if got := filter.offers.Load() - offers; got != 1 {
		t.Errorf("%d offers to the disk, want 1", got)
	}
	second.Release()
}

func TestEvictionReportsOneRemoval(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(1)})
	block := chain(1, 1)
	release(p.register(block))
	p.quiesce()
	// The sink refuses a second removal, and finish one that never came.
	p.allocate(1)
	p.checkEvents()
	if got := p.sink.told(); got != (told{stores: 1}) {
		t.Errorf("told %+v", got)
	}
}

func TestEachTierReportsItsOwnStoresAndRemovals(t *testing.T) {
	p := diskPool(t, nil)
	block := chain(1, 1)[0]
	release(p.register([]Block{block}))
	p.quiesce()
	told := func(tier kv.Tier) bool {
		p.sink.mu.Lock()
		defer p.sink.mu.Unlock()
		_, ok := p.sink.resident[sinkKey{p.id, tier, block.Key}]
		return ok
	}
	if !told(kv.TierHost) || !told(kv.TierDisk) {
		t.Errorf("told of host %v, of disk %v", told(kv.TierHost), told(kv.TierDisk))
	}
	p.evictHost([]Block{block})
	if told(kv.TierHost) || !told(kv.TierDisk) {
		t.Errorf("after the eviction: told of host %v, of disk %v", told(kv.TierHost), told(kv.TierDisk))
	}
}
