package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// fakeAgent is an agent in this process: it keeps blocks by their keys, counts
// pins and open requests, and can be told to misbehave. It is both connections
// of a session. Set its knobs before use.
type fakeAgent struct {
	naming     naming
	groups     kvgroup.Groups
	tier       kv.Tier // what lookups say
	blockBytes int

	dropLoads   bool          // CLAIM is answered, LOAD never sent
	gate        chan struct{} // when not nil, each LOAD waits to receive from it
	staleOnLoad bool          // slots are granted again before they are read
	failCommits bool          // COMMIT is refused
	evictAfter  int           // FITs after whose answer a block of the prefix leaves

	mu       sync.Mutex
	slots    []fakeSlot
	index    map[kv.StoredKey]uint32
	requests map[proto.RequestID]*sequence
	pins     map[fakePin]bool
	granted  map[proto.Slot]proto.RequestID
	claims   []int // blocks of each CLAIM
	ended    bool

	loads chan proto.LoadJob
	done  chan struct{}
	drain chan proto.Drain
}

type fakeSlot struct {
	bytes []byte
	key   kv.StoredKey
	gen   uint64
}

// fakePin is a request's pin of a block.
type fakePin struct {
	request proto.RequestID // of group 0
	block   groupBlock
}

func pinOf(r proto.RequestID, block int) fakePin {
	group := int32(r.Group)
	r.Group = 0
	return fakePin{r, groupBlock{group, block}}
}

func newFakeAgent(n naming, blockBytes int) *fakeAgent {
	return &fakeAgent{
		naming: n, tier: kv.TierHost, blockBytes: blockBytes,
		groups: kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: uint32(n.blockSize)}},
		index:  map[kv.StoredKey]uint32{}, requests: map[proto.RequestID]*sequence{}, pins: map[fakePin]bool{}, granted: map[proto.Slot]proto.RequestID{},
		loads: make(chan proto.LoadJob, 64), done: make(chan struct{}), drain: make(chan proto.Drain, 1),
	}
}

func (f *fakeAgent) Open(r proto.RequestID, _, _, _ string, tokens []uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return proto.ErrDisconnected
	}
	for o := range f.requests {
		if o.ID == r.ID {
			panic(fmt.Sprintf("OPEN %v while %v is open", r, o))
		}
	}
	f.checkSettled("OPEN", r)
	f.requests[r] = newSequence(f.naming, append([]uint32(nil), tokens...))
	return nil
}

// checkSettled panics when a request that ends, of whatever generation, still
// holds grants: its engine may be copying into them.
func (f *fakeAgent) checkSettled(frame string, r proto.RequestID) {
	for slot, o := range f.granted {
		if o.ID == r.ID {
			panic(fmt.Sprintf("%s %v while %v is granted slot %v", frame, r, o, slot))
		}
	}
}

func (f *fakeAgent) request(r proto.RequestID) (*sequence, error) {
	r.Group = 0
	switch s := f.requests[r]; {
	case f.ended:
		return nil, proto.ErrDisconnected
	case s == nil:
		return nil, fmt.Errorf("request %v is not open", r)
	default:
		return s, nil
	}
}

func (f *fakeAgent) Append(r proto.RequestID, offset int, tokens []uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.request(r)
	if err != nil {
		return err
	}
	if offset != len(s.tokens) {
		panic(fmt.Sprintf("APPEND %v at %d, has %d tokens", r, offset, len(s.tokens)))
	}
	for _, t := range tokens {
		s.push(t)
	}
	return nil
}

func (f *fakeAgent) Lookup(_ context.Context, r proto.RequestID, first, count int, _ time.Duration) (proto.LookupAnswer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.request(r)
	if err != nil {
		return proto.LookupAnswer{}, err
	}
	var a proto.LookupAnswer
	for i, id := range s.ids[first : first+count] {
		n, ok := f.index[id.key.InGroup(r.Group)]
		if !ok {
			break
		}
		f.pins[pinOf(r, first+i)] = true
		a.Ready++
		a.Slots = append(a.Slots, proto.Slot{Index: n, Generation: f.slots[n].gen})
		a.Sources = append(a.Sources, f.tier)
	}
	return a, nil
}

// Fit asks every length, the longest first.
func (f *fakeAgent) Fit(_ context.Context, r proto.RequestID, limit, _ int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.request(r)
	if err != nil {
		return 0, err
	}
	size := f.naming.blockSize
	for n := min(limit/size, len(s.ids)); n > 0; n-- {
		whole := true
		for group, g := range f.groups {
			first, end := g.Needs(uint32(n * size))
			for _, id := range s.ids[first:end] {
				_, ok := f.index[id.key.InGroup(uint32(group))]
				whole = whole && ok
			}
		}
		if whole {
			if f.evictAfter--; f.evictAfter >= 0 {
				delete(f.index, s.ids[n-1].key.InGroup(0))
			}
			return n * size, nil
		}
	}
	return 0, nil
}

func (f *fakeAgent) Claim(_ context.Context, r proto.RequestID, job uint64, first int, blocks []uint32) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.request(r)
	if err != nil {
		return 0, err
	}
	var slots []proto.Slot
	for i := range blocks {
		if !f.pins[pinOf(r, first+i)] {
			return 0, &proto.RefusedError{Type: proto.TypeClaim}
		}
		n := f.index[s.ids[first+i].key.InGroup(r.Group)]
		slots = append(slots, proto.Slot{Index: n, Generation: f.slots[n].gen})
		if f.staleOnLoad {
			f.slots[n].gen++
		}
	}
	f.claims = append(f.claims, len(blocks))
	if !f.dropLoads {
		f.loads <- proto.LoadJob{Job: job, Group: r.Group, Slots: slots, Blocks: blocks}
	}
	return 1, nil
}

func (f *fakeAgent) Store(_ context.Context, r proto.RequestID, first, count int) (proto.StoreAnswer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.request(r)
	if err != nil {
		return proto.StoreAnswer{}, err
	}
	var a proto.StoreAnswer
	for i, id := range s.ids[first : first+count] {
		key := id.key.InGroup(r.Group)
		if _, ok := f.index[key]; ok {
			a.Present++
			continue
		}
		n := uint32(len(f.slots))
		f.slots = append(f.slots, fakeSlot{bytes: make([]byte, f.blockBytes), key: key, gen: 1})
		slot := proto.Slot{Index: n, Generation: 1}
		f.granted[slot] = r
		a.Grants = append(a.Grants, proto.GrantedSlot{Block: uint32(first + i), Slot: slot})
	}
	return a, nil
}

func (f *fakeAgent) Commit(_ context.Context, r proto.RequestID, slots []proto.Slot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.request(r); err != nil {
		return err
	}
	if f.failCommits {
		return &proto.RefusedError{Type: proto.TypeCommit}
	}
	for _, s := range slots {
		slot := f.slots[s.Index]
		if n := wrongBytes(slot.bytes, slot.key); n > 0 {
			panic(fmt.Sprintf("COMMIT of slot %d with %d wrong bytes", s.Index, n))
		}
		f.index[slot.key] = s.Index
		delete(f.granted, s)
	}
	return nil
}

// Resume gives nothing back. The requests, grants and pins of the earlier session end.
func (f *fakeAgent) Resume(context.Context, proto.Welcome, proto.Held) (proto.Held, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.requests)
	clear(f.pins)
	clear(f.granted)
	return proto.Held{}, nil
}

func (f *fakeAgent) Abort(_ proto.RequestID, slots []proto.Slot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return proto.ErrDisconnected
	}
	for _, s := range slots {
		delete(f.granted, s)
	}
	return nil
}

func (f *fakeAgent) Release(r proto.RequestID, first, count int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.request(r); err != nil {
		return err
	}
	for i := range count {
		delete(f.pins, pinOf(r, first+i))
	}
	return nil
}

func (f *fakeAgent) CloseRequest(r proto.RequestID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return proto.ErrDisconnected
	}
	f.checkSettled("CLOSE", r)
	delete(f.requests, r)
	maps.DeleteFunc(f.pins, func(p fakePin, _ bool) bool { return p.request == r })
	return nil
}

func (f *fakeAgent) SlotBytes(s proto.Slot) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.slots[s.Index].bytes, nil
}

func (f *fakeAgent) Generation(s proto.Slot) (uint64, error) {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.slots[s.Index].gen, nil
}

func (f *fakeAgent) Loads() <-chan proto.LoadJob  { return f.loads }
func (f *fakeAgent) Done() <-chan struct{}        { return f.done }
func (f *fakeAgent) Draining() <-chan proto.Drain { return f.drain }

func (f *fakeAgent) Report(proto.Stats) error { return nil }

// Bye panics when grants are left: the engine could have settled them.
func (f *fakeAgent) Bye(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended && len(f.granted) > 0 {
		panic(fmt.Sprintf("BYE with %d slots granted", len(f.granted)))
	}
	return nil
}

// Close ends both connections, as an agent that dies does.
func (f *fakeAgent) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.ended = true
		close(f.done)
		close(f.loads)
	}
	return nil
}

// flip inverts one byte of the stored block with the given key.
func (f *fakeAgent) flip(key kv.StoredKey, at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots[f.index[key]].bytes[at] ^= 0xff
}

// evictOne drops a stored block that nobody has pinned, if there is one.
func (f *fakeAgent) evictOne(random *rand.Rand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pins) > 0 || len(f.slots) == 0 {
		return
	}
	delete(f.index, f.slots[random.IntN(len(f.slots))].key)
}

// leftovers describes what the engine should have given back, and has not.
func (f *fakeAgent) leftovers() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) == 0 && len(f.pins) == 0 && len(f.granted) == 0 {
		return ""
	}
	return fmt.Sprintf("%d requests open, %d pins, %d slots granted", len(f.requests), len(f.pins), len(f.granted))
}
