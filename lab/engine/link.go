package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// remote is the node's agent as the scheduler sees it.
type remote interface {
	// open starts a conversation about one attempt at a request. It returns nil
	// when no agent is connected, when it has no tier to offer, or when it can keep
	// no further conversation.
	open(a attempt) conversation
}

// attempt is what a conversation begins with.
type attempt struct {
	request    uint64
	generation uint32
	tokens     []uint32        // of all full blocks
	after      <-chan struct{} // closed when the request's last conversation is over; nil: it has none
	ended      func()          // called once, when this conversation is over
}

// conversation is one attempt at one request with the agent. Calls never block
// and are carried out in order. Callbacks are called exactly once, from another
// goroutine; when the agent is lost they report failure.
type conversation interface {
	// lookup asks which of the count blocks from first on the agent holds.
	lookup(first, count int, done func(lookupHit))
	// load copies the blocks of the request from first on, which lookup found, into
	// device blocks. good is how many of the first ones arrived and are right.
	load(first int, blocks []int32, ids []identity, done func(good int))
	// release gives up what lookup pinned.
	release(first, count int)
	// store offers the blocks from first on, whose bytes lie in device blocks that
	// the caller keeps until done. It returns false, and calls nothing, when too
	// much waits to be stored already.
	store(first int, blocks []int32, tokens []uint32, done func()) bool
	// close ends the conversation once everything asked for has been done.
	close()
	// over is closed when it has ended.
	over() <-chan struct{}
}

// lookupHit is what the agent holds: the len(sources) blocks from first on,
// pinned, and the tier that each was found in.
type lookupHit struct {
	first   int
	sources []kv.Tier
}

// beyond returns the sources of the blocks from block n on, n not before first.
func (h lookupHit) beyond(n int) []kv.Tier {
	return h.sources[min(max(n-h.first, 0), len(h.sources)):]
}

// absent is the agent of an engine that has none.
type absent struct{}

func (absent) open(attempt) conversation { return nil }

const (
	// answerTime bounds every wait for the agent, a lookup's own wait aside. It is
	// a backstop: what normally ends a wait is the connection.
	answerTime = 10 * time.Second
	// byeTime bounds the goodbye of a session.
	byeTime = 300 * time.Millisecond
)

// schedulerConn is what a link needs of proto.SchedulerClient.
type schedulerConn interface {
	Open(r proto.RequestID, lora, loraName, salt string, tokens []uint32) error
	Append(r proto.RequestID, offset int, tokens []uint32) error
	Lookup(ctx context.Context, r proto.RequestID, first, count int, wait time.Duration) (proto.LookupAnswer, error)
	Claim(ctx context.Context, r proto.RequestID, job uint64, first int, deviceBlocks []uint32) (int, error)
	Store(ctx context.Context, r proto.RequestID, first, count int) (proto.StoreAnswer, error)
	Commit(ctx context.Context, r proto.RequestID, slots []proto.Slot) error
	Abort(r proto.RequestID, slots []proto.Slot) error
	Release(r proto.RequestID, first, count int) error
	CloseRequest(r proto.RequestID) error
	Resume(ctx context.Context, w proto.Welcome, h proto.Held) (proto.Held, error)
	SlotBytes(s proto.Slot) ([]byte, error)
	Bye(ctx context.Context, reason string) error
	Report(s proto.Stats) error
	Draining() <-chan proto.Drain
	Done() <-chan struct{}
	Close() error
}

// workerConn is what a link needs of proto.WorkerClient.
type workerConn interface {
	Loads() <-chan proto.LoadJob
	SlotBytes(s proto.Slot) ([]byte, error)
	Generation(s proto.Slot) (uint64, error)
	Close() error
}

// link is one session with the agent: the scheduler's connection, the
// worker's, and the copies that are under way. Conversations may outlive it;
// whatever they ask of it then fails. Copies may outlive the connections: they
// end before the mappings go.
type link struct {
	sched  schedulerConn
	worker workerConn
	device device
	wait   time.Duration // how long the agent may keep a lookup
	ctr    *counters

	ctx    context.Context // ends when the session does
	cancel context.CancelFunc
	copier chan struct{} // closed when the copier has ended

	copies  sync.WaitGroup // that use mapped memory; none begins once the link is lost
	closing atomic.Bool    // copies give up at their next block

	mu         sync.Mutex
	lost       bool                // nothing begins any more
	granted    map[proto.Slot]bool // granted and not settled; whether the block is in it
	loading    map[proto.Slot]int  // pinned and being read, by how many loads
	jobs       map[uint64]*loadJob // claimed, but no LOAD has come yet; nil when none will come
	lastJob    uint64
	settledAll chan struct{} // nil unless drain waits for what is granted and read
}

// loadJob is the engine's side of one LOAD.
type loadJob struct {
	number uint64       // set by expect
	slots  []proto.Slot // as lookups reported them; LOAD names the same
	blocks []int32
	ids    []identity
	good   chan int // gets the number of leading blocks that are right; room for it
}

// newLink starts the session's copier. The caller calls close.
func newLink(sched schedulerConn, worker workerConn, d device, wait time.Duration, ctr *counters) *link {
	l := &link{
		sched: sched, worker: worker, device: d, wait: wait, ctr: ctr,
		copier: make(chan struct{}), jobs: make(map[uint64]*loadJob),
		granted: make(map[proto.Slot]bool), loading: make(map[proto.Slot]int),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.runCopier()
	return l
}

// serve returns when either connection or ctx has ended or, with how long the
// agent waits, when the agent is about to stop.
func (l *link) serve(ctx context.Context) (patience time.Duration) {
	select {
	case <-l.sched.Done():
	case <-l.copier:
	case <-ctx.Done():
	case d := <-l.sched.Draining():
		return time.Duration(d.DeadlineMillis) * time.Millisecond
	}
	return 0
}

// close ends the session: it waits for copies under way, says goodbye if the
// connection still stands, and unmaps the extents.
func (l *link) close() {
	l.lose()
	l.closing.Store(true)
	l.copies.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), byeTime)
	defer cancel()
	// A session that has ended already needs no goodbye.
	_ = l.sched.Bye(ctx, "engine stops")
	_ = l.worker.Close()
	<-l.copier
	_ = l.sched.Close()
}

// runCopier carries out LOADs until the worker's connection ends; then it fails
// those that have not come.
func (l *link) runCopier() {
	defer close(l.copier)
	for j := range l.worker.Loads() {
		l.copyJob(j)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.jobs {
		j.good <- 0
	}
	l.jobs = nil
}

// expect numbers and announces a load, so that its LOAD finds it; false when
// no LOAD will ever come.
func (l *link) expect(j *loadJob) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs == nil {
		return false
	}
	l.lastJob++
	j.number = l.lastJob
	l.jobs[j.number] = j
	return true
}

// takeJob takes an announced load; nil when it is not expected (any more).
// Whoever takes it reports its end.
func (l *link) takeJob(number uint64) *loadJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.jobs[number]
	delete(l.jobs, number)
	return j
}

// abandon ends a load whose LOAD has not come. One that is being copied goes on
// and reports itself.
func (l *link) abandon(j *loadJob) {
	if l.takeJob(j.number) != nil {
		j.good <- 0
	}
}

// copyJob carries out one LOAD. It goes on after a bad block, so that every
// block of the load is verified.
func (l *link) copyJob(load proto.LoadJob) {
	j := l.takeJob(load.Job)
	if j == nil {
		return
	}
	good, whole := 0, true
	if !slices.Equal(load.Slots, j.slots) || len(load.Blocks) != len(j.blocks) || !l.beginLoad(load.Slots) {
		j.good <- 0
		return
	}
	defer l.endLoad(load.Slots)
	for i, b := range j.blocks {
		err := l.loadBlock(load.Slots[i], b, j.ids[i].key)
		if load.Blocks[i] != uint32(b) {
			err = fmt.Errorf("load into device block %d: want %d", load.Blocks[i], b)
		}
		if whole = whole && err == nil; whole {
			good++
		}
	}
	j.good <- good
}

// loadBlock copies a slot into device block b and compares every byte. A slot
// that was granted again in the meantime shows in its generation word.
func (l *link) loadBlock(s proto.Slot, b int32, key kv.BlockKey) error {
	if l.closing.Load() {
		return proto.ErrDisconnected
	}
	src, err := l.worker.SlotBytes(s)
	if err != nil {
		return err
	}
	if err := l.checkGeneration(s); err != nil {
		return err
	}
	dst := l.device.bytes(b)
	copy(dst, src)
	if err := l.checkGeneration(s); err != nil {
		return err
	}
	l.ctr.add(&l.ctr.BlocksVerified, 1)
	if wrong := wrongBytes(dst, key); wrong > 0 {
		l.ctr.add(&l.ctr.WrongBytes, uint64(wrong))
		return fmt.Errorf("slot %d of extent %d: %d wrong bytes", s.Index, s.Extent, wrong)
	}
	return nil
}

func (l *link) checkGeneration(s proto.Slot) error {
	g, err := l.worker.Generation(s)
	if err == nil && g != s.Generation {
		err = fmt.Errorf("slot %d of extent %d: generation %d, want %d", s.Index, s.Extent, g, s.Generation)
	}
	return err
}

// fillSlot copies device block b into a granted slot.
func (l *link) fillSlot(s proto.Slot, b int32) error {
	if l.closing.Load() {
		return proto.ErrDisconnected
	}
	dst, err := l.sched.SlotBytes(s)
	if err != nil {
		return err
	}
	copy(dst, l.device.bytes(b))
	return nil
}
