package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// talkQueue is how many things one conversation may have waiting. A request's
// lookups, loads and releases never need more than a few; stores that find the
// queue nearly full are refused, so that those always have room.
const (
	talkQueue   = 64
	talkReserve = 16
)

// talk is the conversation with a real agent. Its goroutine carries out the calls in
// order.
type talk struct {
	link  *link
	id    proto.RequestID
	tasks chan func()
	done  chan struct{}

	sent int // run's: tokens that the agent has
	// pinned are the slots that lookups reported, by block; run's.
	pinned map[groupBlock]proto.Slot
	err    error // run's: why the agent does not know the request
}

// groupBlock is a block of a request in a KV group.
type groupBlock struct {
	group int32
	block int
}

var _ conversation = (*talk)(nil)

// newTalk starts a conversation with the agent over l about the attempt a. Its goroutine calls
// a.ended at the end.
func newTalk(l *link, a attempt) *talk {
	t := &talk{
		link:   l,
		id:     proto.RequestID{ID: a.request, Generation: a.generation},
		pinned: make(map[groupBlock]proto.Slot),
		tasks:  make(chan func(), talkQueue),
		done:   make(chan struct{}),
	}
	go t.run(a)
	return t
}

// run opens the request at the agent, carries out the calls in order until close, and closes the
// request.
func (t *talk) run(a attempt) {
	defer a.ended()
	defer close(t.done)
	if a.after != nil {
		// The earlier generation's copies have ended and its grants are committed or
		// aborted by then: OPEN ends it in the agent.
		<-a.after
	}
	t.err = t.link.sched.Open(t.id, "", "", "", a.tokens)
	t.sent = len(a.tokens)
	for task := range t.tasks {
		task()
	}
	if t.err == nil {
		// No copy is in flight: loads have reported, stores have settled their grants.
		// Without a connection the session's end has closed the request.
		_ = t.link.sched.CloseRequest(t.id)
	}
}

// do queues a task. There is always room.
func (t *talk) do(task func()) {
	select {
	case t.tasks <- task:
	default:
		panic("BUG: a conversation has no room for a task that it must take")
	}
}

func (t *talk) close()                { close(t.tasks) }
func (t *talk) over() <-chan struct{} { return t.done }

// lookup implements conversation: it queues the question which of count blocks, from first on, the
// agent holds. done gets the answer, without sources when the agent does not answer.
func (t *talk) lookup(first, count int, done func(lookupHit)) {
	t.do(func() {
		ask := t.ask
		if len(t.link.groups) > 1 {
			ask = t.askAll
		}
		sources, err := ask(first, count)
		if err != nil {
			t.link.ctr.add(&t.link.ctr.LookupsFailed, 1)
		}
		done(lookupHit{first: first, sources: sources})
	})
}

// ask looks up count blocks from first on, of a model with full attention alone, and returns the
// tiers of the blocks that the agent has pinned.
func (t *talk) ask(first, count int) ([]kv.Tier, error) {
	if t.err != nil {
		return nil, t.err
	}
	return t.pin(0, first, count)
}

// pin looks up count blocks of a group from first on, and returns the tiers of the blocks that the
// agent has pinned. It keeps their slots for load.
func (t *talk) pin(group int32, first, count int) ([]kv.Tier, error) {
	ctx, cancel := context.WithTimeout(t.link.ctx, answerTime+t.link.wait)
	defer cancel()
	t.link.ctr.add(&t.link.ctr.Lookups, 1)
	a, err := t.link.sched.Lookup(ctx, t.inGroup(group), first, count, t.link.wait)
	if err != nil {
		// Pins that were made all the same drop with CLOSE.
		return nil, err
	}
	if a.Ready != len(a.Sources) || a.Ready != len(a.Slots) || a.Ready > count {
		return nil, fmt.Errorf("lookup answer: %d ready, %d sources, %d slots, %d asked for", a.Ready, len(a.Sources), len(a.Slots), count)
	}
	for i, s := range a.Slots {
		t.pinned[groupBlock{group, first + i}] = s
	}
	return a.Sources, nil
}

// inGroup returns the request's id for calls about blocks of a KV group.
func (t *talk) inGroup(group int32) proto.RequestID {
	id := t.id
	id.Group = uint32(group)
	return id
}

// release implements conversation: it queues the release of the pins that a lookup left on count
// blocks of each group, from first on.
func (t *talk) release(first, count int) {
	t.do(func() { t.unpin(first, count) })
}

func (t *talk) unpin(first, count int) {
	for group := range t.link.groups {
		if t.err == nil {
			// A lost connection has dropped the pins.
			_ = t.link.sched.Release(t.inGroup(int32(group)), first, count)
		}
	}
}

// load implements conversation: it queues the copy of blocks that a lookup found into device
// blocks. done gets the number of leading blocks that arrived with the right bytes.
func (t *talk) load(parts []part, ids []identity, done func(good int)) {
	t.do(func() {
		good := t.loadAll(parts, ids)
		all := 0
		for _, p := range parts {
			all += len(p.blocks)
		}
		loaded := good
		if good == len(parts[0].blocks) {
			loaded = all
		}
		t.link.ctr.add(&t.link.ctr.BlocksLoaded, uint64(loaded))
		t.link.ctr.add(&t.link.ctr.LoadsFailed, uint64(all-loaded))
		done(good)
	})
}

// loadAll claims the blocks at the agent, in several frames if necessary, and waits until the
// copier has copied them. It returns the number of leading blocks that arrived with the right
// bytes. A load of several groups fails whole: a prefix is of no use without its window.
func (t *talk) loadAll(parts []part, ids []identity) (good int) {
	jobs := t.claimAll(parts, ids)
	whole := true
	for _, j := range jobs {
		n := t.await(j)
		if whole && j.group == parts[0].group {
			good += n
		}
		whole = whole && n == len(j.blocks)
	}
	if !whole && len(parts) > 1 {
		return 0
	}
	return good
}

// claimAll returns a job for each frame of blocks. It ends with the first that cannot be claimed.
func (t *talk) claimAll(parts []part, ids []identity) (jobs []*loadJob) {
	for _, p := range parts {
		for len(p.blocks) > 0 {
			n := min(len(p.blocks), proto.MaxBlocksPerFrame)
			j := &loadJob{group: p.group, blocks: p.blocks[:n], ids: ids[p.first : p.first+n], good: make(chan int, 1)}
			for i := range n {
				j.slots = append(j.slots, t.pinned[groupBlock{p.group, p.first + i}])
			}
			jobs = append(jobs, j)
			if !t.claim(j, p.first) {
				return jobs
			}
			p.first, p.blocks = p.first+n, p.blocks[n:]
		}
	}
	return jobs
}

// claim has the agent send one LOAD for the blocks of j, the first of which has index first in
// the request. It returns false when no LOAD will come. j.good gets exactly one report: from the
// copier, or from claim when it returns false.
func (t *talk) claim(j *loadJob, first int) bool {
	if t.err != nil || !t.link.expect(j) {
		j.good <- 0
		return false
	}
	ctx, cancel := context.WithTimeout(t.link.ctx, answerTime)
	defer cancel()
	device := make([]uint32, len(j.blocks))
	for i, b := range j.blocks {
		device[i] = uint32(b)
	}
	workers, err := t.link.sched.Claim(ctx, t.inGroup(j.group), j.number, first, device)
	if err != nil || workers == 0 {
		t.link.abandon(j)
		return false
	}
	return true
}

// await returns the report of a job: the number of good blocks. After answerTime it gives up a
// LOAD that has not come, and the report is 0.
func (t *talk) await(j *loadJob) int {
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	select {
	case n := <-j.good:
		return n
	case <-timer.C:
		t.link.abandon(j)
		return <-j.good // a copy under way reports when it ends
	}
}

// store implements conversation: it queues an offer of device blocks. tokens are the request's. It
// returns false when the queue is nearly full, which keeps room for calls that must not be refused.
func (t *talk) store(p part, tokens []uint32, done func()) bool {
	if len(t.tasks) >= talkQueue-talkReserve {
		return false
	}
	t.do(func() {
		if err := t.storeAll(p, tokens); err != nil {
			t.link.ctr.add(&t.link.ctr.StoresFailed, uint64(len(p.blocks)))
		}
		done()
	})
	return true
}

// storeAll sends the agent those of the request's tokens that it lacks, and stores the device
// blocks, frame by frame.
func (t *talk) storeAll(p part, tokens []uint32) error {
	if t.err != nil {
		return t.err
	}
	if len(tokens) > t.sent {
		if t.err = t.link.sched.Append(t.id, t.sent, tokens[t.sent:]); t.err != nil {
			return t.err
		}
		t.sent = len(tokens)
	}
	for len(p.blocks) > 0 {
		n := min(len(p.blocks), proto.MaxBlocksPerFrame)
		if err := t.storeSome(part{p.group, p.first, p.blocks[:n]}); err != nil {
			return err
		}
		p.first, p.blocks = p.first+n, p.blocks[n:]
	}
	return nil
}

// storeSome offers one frame of blocks to the agent, copies those that get a slot, and commits
// the slots. When a copy fails it aborts all of them. For a GRANT that comes too late it copies
// nothing, and the CLOSE of the request aborts the grant.
func (t *talk) storeSome(p part) error {
	ctx, cancel := context.WithTimeout(t.link.ctx, answerTime)
	defer cancel()
	a, err := t.link.sched.Store(ctx, t.inGroup(p.group), p.first, len(p.blocks))
	if err != nil {
		return err
	}
	slots := grantedSlots(a.Grants)
	if !t.link.beginStore(slots) {
		return proto.ErrDisconnected // it was granted by an agent that has died since
	}
	err = t.fill(a.Grants, p)
	t.link.endStore(slots, err == nil)
	if err == nil && len(slots) > 0 {
		err = t.link.sched.Commit(ctx, t.id, slots)
	}
	if err != nil {
		if t.link.sched.Abort(t.id, slots) == nil {
			t.link.settled(slots)
		}
		return err // without a connection the next agent is told of the slots
	}
	t.link.settled(slots)
	t.link.ctr.add(&t.link.ctr.BlocksStored, uint64(len(slots)))
	t.link.ctr.add(&t.link.ctr.StoresPresent, uint64(a.Present))
	t.link.ctr.add(&t.link.ctr.StoresRefused, uint64(a.Refused))
	return nil
}

// fill copies device blocks into the slots that the agent has granted. p are the blocks that were
// offered. The error names a grant for another block.
func (t *talk) fill(grants []proto.GrantedSlot, p part) error {
	for _, g := range grants {
		i := int(g.Block) - p.first
		if i < 0 || i >= len(p.blocks) {
			return fmt.Errorf("grant for block %d: offered %d..%d", g.Block, p.first, p.first+len(p.blocks)-1)
		}
		if err := t.link.fillSlot(g.Slot, p.blocks[i]); err != nil {
			return err
		}
	}
	return nil
}

func grantedSlots(grants []proto.GrantedSlot) []proto.Slot {
	slots := make([]proto.Slot, len(grants))
	for i, g := range grants {
		slots[i] = g.Slot
	}
	return slots
}
