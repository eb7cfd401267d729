package approx

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// ErrClosed says that the index was closed.
var ErrClosed = errors.New("index is closed")

// tick is the resolution of expiries.
const tick = 100 * time.Millisecond

// maxRouted is the most blocks that the queue has slots for.
const maxRouted = math.MaxUint32 - 1

// Options bound an Index.
type Options struct {
	// TTL is how long a worker is expected to keep a block. With 0 every prediction
	// expires at once.
	TTL time.Duration
	// MaxBlocks is the most pairs of worker and block. With 0 only the TTL bounds them.
	// Above MaxBlocks the pairs that expire soonest are pruned, until PruneRatio (0 to
	// 1) times MaxBlocks are left. Record prunes the excess at once. Record and Tick
	// prune the rest in small steps.
	MaxBlocks  int
	PruneRatio float64
	// Index bounds the index behind the predictions.
	Index index.Options
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	switch {
	case o.TTL < 0:
		return fmt.Errorf("approximate index TTL: %v is negative", o.TTL)
	case o.MaxBlocks < 0 || o.MaxBlocks > maxRouted:
		return fmt.Errorf("approximate index max blocks: %d is not in 0..%d", o.MaxBlocks, maxRouted)
	case !(o.PruneRatio >= 0 && o.PruneRatio <= 1):
		return fmt.Errorf("approximate index prune ratio: %v is not in 0..1", o.PruneRatio)
	}
	return nil
}

// Stats are the counters and gauges of an Index.
type Stats struct {
	Blocks   int    `metric:"guessed_blocks" help:"Pairs of worker and block that routing decisions predict."`
	Workers  int    `metric:"-"`
	Recorded uint64 `metric:"guesses_recorded" help:"Routing decisions recorded as predictions."`
	Expired  uint64 `metric:"guesses_expired" help:"Predicted blocks that expired."`
	Pruned   uint64 `metric:"guesses_pruned" help:"Predicted blocks pruned for others."`
	Removed  uint64 `metric:"guesses_removed" help:"Predicted blocks whose worker left."`
	// Index is the index behind the predictions. A block that is routed again counts as a
	// duplicate store there.
	Index index.Stats `metric:"-"`
}

// Index predicts what workers hold. Make one with New.
type Index struct {
	x                     *index.Index
	ttl                   time.Duration
	maxBlocks, keepBlocks int
	now                   func() time.Time
	start                 time.Time
	// nextDue is the tick at which the next block expires.
	nextDue atomic.Int64
	closed  atomic.Bool

	// mu is taken before the locks of x.
	mu        sync.Mutex
	queue     routedQueue
	newestDue int64
	// pruning starts above maxBlocks and ends when keepBlocks are left.
	pruning bool
	stats   Stats
	stored  kvevent.RouterEvent // reused
	removed kvevent.RouterEvent // reused
}

// New returns an empty index. The error names the option that is out of range.
func New(o Options) (*Index, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	x, err := index.New(o.Index)
	if err != nil {
		return nil, err
	}
	a := &Index{x: x, ttl: o.TTL, maxBlocks: o.MaxBlocks, now: o.Now, queue: newRoutedQueue()}
	a.maxBlocks = cmp.Or(a.maxBlocks, maxRouted)
	a.keepBlocks = int(o.PruneRatio * float64(a.maxBlocks))
	if a.now == nil {
		a.now = time.Now
	}
	a.start = a.now()
	a.nextDue.Store(math.MaxInt64)
	return a, nil
}

// SetMember says whether Match reports a worker: see index.Index.SetMember.
func (a *Index) SetMember(w kv.Worker, pool uint64, known bool) error {
	if a.closed.Load() {
		return ErrClosed
	}
	return a.x.SetMember(w, pool, known)
}

// Members returns the known workers: see index.Index.Members.
func (a *Index) Members() *index.Members { return a.x.Members() }

// Record notes that a prompt was sent to a worker. locals and seq name the blocks
// of the prompt from its start, and are borrowed. The error is ErrClosed,
// index.ErrFull for too many workers, or says that the lengths differ. After an
// error the prompt is not recorded.
func (a *Index) Record(w kv.Worker, locals []kv.LocalHash, seq []kv.SequenceHash) error {
	if len(locals) != len(seq) {
		return fmt.Errorf("routing decision for worker %s: %d local hashes and %d sequence hashes, want as many", w, len(locals), len(seq))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return ErrClosed
	}
	elapsed := a.elapsed()
	a.expireLocked(elapsed, maxExpiredPerDecision)
	if len(seq) == 0 || a.ttl == 0 {
		a.stats.Recorded++
		a.stats.Expired += uint64(len(seq))
		return nil
	}
	e := &a.stored
	*e = kvevent.RouterEvent{Kind: kvevent.Stored, Owner: kv.WorkerOwner(w), Tier: kv.TierDevice, Blocks: e.Blocks[:0]}
	for i, h := range seq {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h, Local: locals[i]})
	}
	if err := a.x.Apply(e); err != nil {
		return err
	}
	a.stats.Recorded++
	// The clock may have been set back. The queue stays in the order of due.
	a.newestDue = max(a.newestDue, int64((elapsed+a.ttl+tick-1)/tick))
	a.queue.push(w, seq, a.newestDue)
	a.pruning = a.pruning || a.queue.size > a.maxBlocks
	// Prune more blocks than were added, so that pruning ends. The number is bounded,
	// because a request waits for the decision.
	a.pruneLocked(len(seq) + maxExpiredPerDecision)
	a.updateNextDueLocked()
	return nil
}

// pruneLocked removes the blocks that expire soonest, at most limit of them, and returns their
// number. It does nothing until the index exceeds maxBlocks, and then goes on until keepBlocks are
// left.
func (a *Index) pruneLocked(limit int) int {
	if !a.pruning {
		return 0
	}
	left := limit
	n := a.dropLocked(func(*routedBlock) bool {
		left--
		return left >= 0 && a.queue.size > a.keepBlocks
	})
	a.stats.Pruned += uint64(n)
	a.pruning = a.queue.size > a.keepBlocks
	return n
}

// Match fills dst with the device blocks that workers are expected to have: see
// index.Index.Match. When many blocks expire at once, some of them still count
// until the next Tick. The error is ErrClosed, and then dst is unchanged.
func (a *Index) Match(dst *index.Matches, locals []kv.LocalHash) error {
	if a.closed.Load() {
		return ErrClosed
	}
	// The holder of a locked mu expires blocks itself.
	if elapsed := a.elapsed(); a.dueAt(elapsed) && a.mu.TryLock() {
		a.expireLocked(elapsed, maxExpiredPerDecision)
		a.mu.Unlock()
	}
	a.x.Match(dst, locals, index.Continuation)
	return nil
}

// Tick removes the blocks that have expired, and blocks above Options.MaxBlocks. It returns the
// number of expired blocks. Call it regularly.
func (a *Index) Tick() int {
	elapsed := a.elapsed()
	a.x.Sweep(sweepRuns)
	n := 0
	// Unlock between steps, so that a decision waits for one step at most.
	for a.dueAt(elapsed) {
		a.mu.Lock()
		n += a.expireLocked(elapsed, maxPerLock)
		a.mu.Unlock()
	}
	for more := true; more; {
		a.mu.Lock()
		more = a.pruneLocked(maxPerLock) == maxPerLock
		a.updateNextDueLocked()
		a.mu.Unlock()
	}
	return n
}

const (
	// maxExpiredPerDecision is the most blocks that one Record or Match expires.
	// maxPerLock is the most blocks that Tick removes before it unlocks.
	maxExpiredPerDecision = 256
	maxPerLock            = 4096
)

// sweepRuns is how many runs of removed workers one Tick frees.
const sweepRuns = 256

// RemoveWorker forgets a worker and its predictions.
func (a *Index) RemoveWorker(w kv.Worker) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return ErrClosed
	}
	a.stats.Removed += uint64(a.queue.removeWorker(w))
	a.updateNextDueLocked()
	a.x.RemoveOwner(kv.WorkerOwner(w))
	return a.x.SetMember(w, 0, false)
}

// Close forgets everything. Further calls return ErrClosed. Close may be called
// again.
func (a *Index) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed.Store(true)
	a.queue = newRoutedQueue()
	a.updateNextDueLocked()
}

// Walk visits events that make an empty index equal to the predictions: see
// index.Index.Walk.
func (a *Index) Walk(visit func(e *kvevent.RouterEvent) bool) { a.x.Walk(visit) }

// Stats returns a snapshot.
func (a *Index) Stats() Stats {
	a.mu.Lock()
	s := a.stats
	s.Blocks, s.Workers = a.queue.size, len(a.queue.byWorker)
	a.mu.Unlock()
	s.Index = a.x.Stats()
	return s
}

// Held returns how many blocks a member is expected to hold. m may be a list of
// this index or of another one: see index.Index.Held.
func (a *Index) Held(m *index.Members, at int) uint64 { return a.x.Held(m, at) }

// elapsed returns the time since New.
func (a *Index) elapsed() time.Duration { return a.now().Sub(a.start) }

// dueAt reports whether any block expires at or before a time.
func (a *Index) dueAt(elapsed time.Duration) bool {
	return int64(elapsed/tick) >= a.nextDue.Load()
}

// updateNextDueLocked sets nextDue, which is read without the lock, to the expiry of the first
// block in the queue. Call it after each change of the queue.
func (a *Index) updateNextDueLocked() {
	next := int64(math.MaxInt64)
	if slot := a.queue.first(); slot != noBlock {
		next = a.queue.blocks[slot].due
	}
	a.nextDue.Store(next)
}

// expireLocked removes the blocks that have expired, at most limit of them, and returns their
// number. elapsed is the present time, counted from New.
func (a *Index) expireLocked(elapsed time.Duration, limit int) int {
	current, left := int64(elapsed/tick), limit
	n := a.dropLocked(func(b *routedBlock) bool {
		left--
		return left >= 0 && b.due <= current
	})
	a.stats.Expired += uint64(n)
	a.updateNextDueLocked()
	return n
}

// dropLocked removes blocks from the queue and from the index, those that expire soonest first,
// while mayDrop returns true for the next one. It returns their number. Neighbours of one worker
// are one event.
func (a *Index) dropLocked(mayDrop func(*routedBlock) bool) int {
	e := &a.removed
	n := 0
	for slot := a.queue.first(); slot != noBlock; slot = a.queue.first() {
		b := &a.queue.blocks[slot]
		if !mayDrop(b) {
			break
		}
		if o := kv.WorkerOwner(b.worker); e.Owner != o || len(e.Removed) == 0 || len(e.Removed) >= kvevent.MaxBlocksPerMessage {
			a.flushLocked()
			*e = kvevent.RouterEvent{Kind: kvevent.Removed, Owner: o, Tier: kv.TierDevice, Removed: e.Removed[:0]}
		}
		e.Removed = append(e.Removed, b.hash)
		a.queue.remove(slot)
		n++
	}
	a.flushLocked()
	return n
}

// flushLocked removes the collected blocks from the index.
func (a *Index) flushLocked() {
	e := &a.removed
	if len(e.Removed) == 0 {
		return
	}
	if err := a.x.Apply(e); err != nil {
		panic(fmt.Sprintf("BUG: the index refuses a removal of %d blocks: %v", len(e.Removed), err))
	}
	e.Removed = e.Removed[:0]
}
