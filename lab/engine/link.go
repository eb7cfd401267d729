package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// remote is the node's agent as the scheduler sees it.
type remote interface {
	// open starts a conversation about one attempt at a request. It returns nil without
	// a connected agent, without a tier, and when the agent can keep no further
	// conversation.
	open(a attempt) conversation
}

// attempt is the start of a conversation.
type attempt struct {
	request    uint64
	generation uint32
	tokens     []uint32        // of all full blocks
	after      <-chan struct{} // closed when the request's earlier conversation has ended; nil without one
	ended      func()          // called once, when this conversation has ended
}

// conversation is one attempt at one request with the agent. Calls never block and are
// carried out in order. Each callback is called exactly once, from another goroutine.
// When the agent is lost it reports failure.
type conversation interface {
	// lookup asks which of count blocks, from first on, the agent can serve in every KV
	// group, and pins those.
	lookup(first, count int, done func(lookupHit))
	// fit asks how many of the leading blocks, at most limit, the agent can serve in every
	// KV group. It pins none.
	fit(limit int, done func(blocks int, err error))
	// load copies blocks that lookup found into device blocks: first those of full attention.
	// ids are the request's. good is the number of leading blocks that arrived with the right
	// bytes in every group.
	load(parts []part, ids []identity, done func(good int))
	// release releases pins of lookup in all groups.
	release(first, count int)
	// store offers blocks of one group. The caller keeps their device blocks until
	// done. It returns false without calling done when too many stores wait already.
	store(p part, tokens []uint32, done func()) bool
	// close ends the conversation after all earlier calls.
	close()
	// over is closed when the conversation has ended.
	over() <-chan struct{}
}

// part is device blocks of one KV group for consecutive blocks of a request, from first on.
type part struct {
	group  int32
	first  int
	blocks []int32
}

// lookupHit is the answer of lookup: len(sources) pinned blocks of full attention from first on,
// with the tier of each. The blocks of a window before their end are pinned too.
type lookupHit struct {
	first   int
	sources []kv.Tier
}

// beyond returns the sources of the blocks from block n on, n not before first.
func (h lookupHit) beyond(n int) []kv.Tier {
	return h.sources[min(max(n-h.first, 0), len(h.sources)):]
}

// absent is the remote of an engine without an agent.
type absent struct{}

func (absent) open(attempt) conversation { return nil }

const (
	// answerTime bounds every wait for the agent, beside a lookup's own wait. A dead
	// agent ends the connection earlier.
	answerTime = 10 * time.Second
	// byeTime bounds the BYE of a session.
	byeTime = 300 * time.Millisecond
)

// schedulerConn has the methods of proto.SchedulerClient that a link calls.
type schedulerConn interface {
	Open(r proto.RequestID, lora, loraName, salt string, tokens []uint32) error
	Append(r proto.RequestID, offset int, tokens []uint32) error
	Lookup(ctx context.Context, r proto.RequestID, first, count int, wait time.Duration) (proto.LookupAnswer, error)
	Fit(ctx context.Context, r proto.RequestID, limit, align int) (int, error)
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

// workerConn has the methods of proto.WorkerClient that a link calls.
type workerConn interface {
	Loads() <-chan proto.LoadJob
	SlotBytes(s proto.Slot) ([]byte, error)
	Generation(s proto.Slot) (uint64, error)
	Close() error
}

// link is one session with the agent: both connections and the copies under way.
// Conversations may outlive a link; their calls then fail. Copies may outlive the
// connections and end before the extents are unmapped.
type link struct {
	sched  schedulerConn
	worker workerConn
	device device
	groups kvgroup.Groups // of the model
	wait   time.Duration  // longest wait of a lookup at the agent
	ctr    *counters

	ctx    context.Context // ends when the session does
	cancel context.CancelFunc
	copier chan struct{} // closed when the copier has ended

	copies  sync.WaitGroup // copies that use mapped memory; none begins once the link is lost
	closing atomic.Bool    // copies give up at their next block

	mu         sync.Mutex
	lost       bool                // no work begins any more
	granted    map[proto.Slot]bool // granted and not settled; true when the slot has its block
	loading    map[proto.Slot]int  // pinned slots that are read, with the number of loads
	jobs       map[uint64]*loadJob // claimed and without LOAD; nil when no LOAD will come
	lastJob    uint64
	settledAll chan struct{} // nil unless drain waits for granted and loading
}

// loadJob is the engine's side of one LOAD.
type loadJob struct {
	number uint64 // set by expect
	group  int32
	slots  []proto.Slot // as lookups reported them; LOAD names the same slots
	blocks []int32
	ids    []identity
	good   chan int // receives the number of leading blocks that are right; never blocks
}

// newLink returns one session with the agent over a scheduler's and a worker's connection, and
// starts the copier, which copies blocks into the device. The caller calls close.
func newLink(o *Options, sched schedulerConn, worker workerConn, d device, ctr *counters) *link {
	l := &link{
		sched: sched, worker: worker, device: d, groups: modelGroups(&o.Namespace), wait: o.LookupWait, ctr: ctr,
		copier: make(chan struct{}), jobs: make(map[uint64]*loadJob),
		granted: make(map[proto.Slot]bool), loading: make(map[proto.Slot]int),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.runCopier()
	return l
}

// serve waits until a connection or ctx has ended, or until the agent says that it will stop.
// Then patience is how long the agent waits for the session to end; otherwise it is 0.
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

// close ends the session. It waits for copies under way, sends BYE if the connection
// stands, and unmaps the extents.
func (l *link) close() {
	l.lose()
	l.closing.Store(true)
	l.copies.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), byeTime)
	defer cancel()
	// A session that has ended needs no BYE.
	_ = l.sched.Bye(ctx, "engine stops")
	_ = l.worker.Close()
	<-l.copier
	_ = l.sched.Close()
}

// runCopier carries out the agent's LOADs (orders to copy blocks to the device) until the worker's
// connection ends. Then it fails the loads whose LOAD has not come. It is a goroutine of its own.
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

// expect gives the load j a number, under which the agent's LOAD will name it. It returns false
// when no LOAD will ever come, because the copier has ended.
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

// takeJob takes an announced load, nil when there is none of that number. The caller
// reports its end.
func (l *link) takeJob(number uint64) *loadJob {
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.jobs[number]
	delete(l.jobs, number)
	return j
}

// abandon ends a load whose LOAD has not come. A load that is being copied goes on and
// reports itself.
func (l *link) abandon(j *loadJob) {
	if l.takeJob(j.number) != nil {
		j.good <- 0
	}
}

// copyJob carries out one LOAD and reports the number of leading blocks that arrived with the
// right bytes. It goes on after a bad block, so that every block of the load is verified.
func (l *link) copyJob(load proto.LoadJob) {
	j := l.takeJob(load.Job)
	if j == nil { // abandoned
		return
	}
	good, whole := 0, true
	if load.Group != uint32(j.group) || !slices.Equal(load.Slots, j.slots) || len(load.Blocks) != len(j.blocks) || !l.beginLoad(load.Slots) {
		j.good <- 0
		return
	}
	defer l.endLoad(load.Slots)
	for i, b := range j.blocks {
		err := l.loadBlock(load.Slots[i], b, j.ids[i].key.InGroup(load.Group))
		if load.Blocks[i] != uint32(b) {
			err = fmt.Errorf("load into device block %d: want %d", load.Blocks[i], b)
		}
		if whole = whole && err == nil; whole {
			good++
		}
	}
	j.good <- good
}

// loadBlock copies a slot of the agent into device block b and compares every byte with those
// that key demands. A slot whose generation changed during the copy was used for another block;
// that is an error, and not a wrong byte.
func (l *link) loadBlock(s proto.Slot, b int32, key kv.StoredKey) error {
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

// fillSlot copies device block b into the slot s, which the agent has granted for it.
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
