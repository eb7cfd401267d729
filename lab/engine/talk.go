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
	pinned map[int]proto.Slot
	err    error // run's: why the agent does not know the request
}

var _ conversation = (*talk)(nil)

// newTalk starts a conversation over l. ended is called when it has ended.
func newTalk(l *link, a attempt) *talk {
	t := &talk{
		link:   l,
		id:     proto.RequestID{ID: a.request, Generation: a.generation},
		pinned: make(map[int]proto.Slot),
		tasks:  make(chan func(), talkQueue),
		done:   make(chan struct{}),
	}
	go t.run(a)
	return t
}

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

func (t *talk) lookup(first, count int, done func(lookupHit)) {
	t.do(func() {
		sources, err := t.ask(first, count)
		if err != nil {
			t.link.ctr.add(&t.link.ctr.LookupsFailed, 1)
		}
		done(lookupHit{first: first, sources: sources})
	})
}

func (t *talk) ask(first, count int) ([]kv.Tier, error) {
	if t.err != nil {
		return nil, t.err
	}
	ctx, cancel := context.WithTimeout(t.link.ctx, answerTime+t.link.wait)
	defer cancel()
	t.link.ctr.add(&t.link.ctr.Lookups, 1)
	a, err := t.link.sched.Lookup(ctx, t.id, first, count, t.link.wait)
	if err != nil {
		// Pins that were made all the same drop with CLOSE.
		return nil, err
	}
	if a.Ready != len(a.Sources) || a.Ready != len(a.Slots) || a.Ready > count {
		return nil, fmt.Errorf("lookup answer: %d ready, %d sources, %d slots, %d asked for", a.Ready, len(a.Sources), len(a.Slots), count)
	}
	for i, s := range a.Slots {
		t.pinned[first+i] = s
	}
	return a.Sources, nil
}

func (t *talk) release(first, count int) {
	t.do(func() {
		if t.err == nil {
			// A lost connection has dropped the pins.
			_ = t.link.sched.Release(t.id, first, count)
		}
	})
}

func (t *talk) load(first int, blocks []int32, ids []identity, done func(good int)) {
	t.do(func() {
		good := t.loadAll(first, blocks, ids)
		t.link.ctr.add(&t.link.ctr.BlocksLoaded, uint64(good))
		t.link.ctr.add(&t.link.ctr.LoadsFailed, uint64(len(blocks)-good))
		done(good)
	})
}

// loadAll claims the blocks, in several frames if necessary, and waits for the copier.
func (t *talk) loadAll(first int, blocks []int32, ids []identity) (good int) {
	var jobs []*loadJob
	for len(blocks) > 0 {
		n := min(len(blocks), proto.MaxBlocksPerFrame)
		j := &loadJob{blocks: blocks[:n], ids: ids[:n], good: make(chan int, 1)}
		for i := range n {
			j.slots = append(j.slots, t.pinned[first+i])
		}
		jobs = append(jobs, j)
		if !t.claim(j, first) {
			break
		}
		first, blocks, ids = first+n, blocks[n:], ids[n:]
	}
	whole := true
	for _, j := range jobs {
		n := t.await(j)
		if whole {
			good += n
		}
		whole = whole && n == len(j.blocks)
	}
	return good
}

// claim has the agent send one LOAD. The job always reports: by the copier, or here
// when no LOAD will come; claim then returns false.
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
	workers, err := t.link.sched.Claim(ctx, t.id, j.number, first, device)
	if err != nil || workers == 0 {
		t.link.abandon(j)
		return false
	}
	return true
}

// await waits for the report of a job. It gives up after answerTime a LOAD that does
// not come over a standing connection.
func (t *talk) await(j *loadJob) int {
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	select {
	case n := <-j.good:
		return n
	case <-timer.C:
		t.link.abandon(j)
		return <-j.good
	}
}

func (t *talk) store(first int, blocks []int32, tokens []uint32, done func()) bool {
	if len(t.tasks) >= talkQueue-talkReserve {
		return false
	}
	t.do(func() {
		if err := t.storeAll(first, blocks, tokens); err != nil {
			t.link.ctr.add(&t.link.ctr.StoresFailed, uint64(len(blocks)))
		}
		done()
	})
	return true
}

// storeAll sends the tokens that the agent lacks and offers the blocks, frame by frame.
func (t *talk) storeAll(first int, blocks []int32, tokens []uint32) error {
	if t.err != nil {
		return t.err
	}
	if len(tokens) > t.sent {
		if t.err = t.link.sched.Append(t.id, t.sent, tokens[t.sent:]); t.err != nil {
			return t.err
		}
		t.sent = len(tokens)
	}
	for len(blocks) > 0 {
		n := min(len(blocks), proto.MaxBlocksPerFrame)
		if err := t.storeSome(first, blocks[:n]); err != nil {
			return err
		}
		first, blocks = first+n, blocks[n:]
	}
	return nil
}

// storeSome offers blocks, copies those with a granted slot and commits them. When a
// copy fails it aborts all. It copies nothing for a GRANT that is late, so that CLOSE
// may abort it.
func (t *talk) storeSome(first int, blocks []int32) error {
	ctx, cancel := context.WithTimeout(t.link.ctx, answerTime)
	defer cancel()
	a, err := t.link.sched.Store(ctx, t.id, first, len(blocks))
	if err != nil {
		return err
	}
	slots := grantedSlots(a.Grants)
	if !t.link.beginStore(slots) {
		return proto.ErrDisconnected // it was granted by an agent that has died since
	}
	err = t.fill(a.Grants, first, blocks)
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

// fill copies blocks into their granted slots. The first block has index first in the
// request.
func (t *talk) fill(grants []proto.GrantedSlot, first int, blocks []int32) error {
	for _, g := range grants {
		i := int(g.Block) - first
		if i < 0 || i >= len(blocks) {
			return fmt.Errorf("grant for block %d: offered %d..%d", g.Block, first, first+len(blocks)-1)
		}
		if err := t.link.fillSlot(g.Slot, blocks[i]); err != nil {
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
