package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// remembered is the number of recent prompts that readers choose from.
const remembered = 256

// remembrance is a recent prompt. Its memory is reused, so that allocations come from
// index and scheduler only.
type remembrance struct {
	mu     sync.RWMutex
	locals []kv.LocalHash
}

// maxWrong bounds the differences that are reported.
const maxWrong = 10

// world is the index, the scheduler and all owners. The writing goroutine owns
// everything but prompts, index and scheduler.
type world struct {
	o         Options
	index     *index.Index
	scheduler *schedule.Scheduler
	rng       *rand.Rand
	traffic   *loggen.Traffic
	owners    []*owner
	// lastName is the highest name of a worker or pool so far.
	lastName uint64
	seq      []kv.SequenceHash
	// blocks counts the blocks that owners stored or removed.
	blocks                  atomic.Uint64
	left, replaced, cleared int
	// prompts are the recent prompts, written of them in all.
	prompts [remembered]remembrance
	written atomic.Int64
	// wrong are the first differences.
	wrong []error
}

// newWorld returns an empty index and a scheduler with the workers and pools of o, which hold
// nothing yet.
func newWorld(o Options) (*world, error) {
	x, err := index.New(index.Options{})
	if err != nil {
		return nil, err
	}
	s, err := schedule.New(schedule.Options{Config: schedule.DefaultConfig(), Members: x.Members})
	if err != nil {
		return nil, err
	}
	w := &world{
		o: o, index: x, scheduler: s, rng: rand.New(rand.NewPCG(o.Seed, 7)), traffic: loggen.NewTraffic(o.engines()),
	}
	for i := range w.prompts {
		w.prompts[i].locals = make([]kv.LocalHash, 0, o.engines().MaxPrompt)
	}
	for i := range o.Pools {
		w.owners = append(w.owners, w.newOwner(kv.OwnerPool, loggen.NewEngine(o.engines(), uint64(i))))
	}
	for i := range o.Workers {
		n, err := w.join(loggen.NewEngine(o.engines(), uint64(o.Pools+i)))
		if err != nil {
			return nil, err
		}
		w.owners = append(w.owners, n)
	}
	return w, nil
}

// newOwner returns an owner of blocks with a new name. engine decides what it holds: on the
// device for a worker, in host memory for a pool.
func (w *world) newOwner(kind kv.OwnerKind, engine *loggen.Engine) *owner {
	w.lastName++
	n := &owner{
		name: kv.Owner{Kind: kind, ID: w.lastName}, tier: kv.TierDevice, index: w.index, engine: engine,
	}
	if kind == kv.OwnerPool {
		n.tier = kv.TierHost
	}
	return n
}

// join returns a new worker that belongs to one of the pools.
func (w *world) join(engine *loggen.Engine) (*owner, error) {
	n := w.newOwner(kv.OwnerWorker, engine)
	n.pool = w.owners[w.rng.IntN(w.o.Pools)].name.ID
	return n, w.index.SetMember(n.name.Worker(), n.pool, true)
}

// serve has a random owner serve the next prompt of the traffic, which changes the index. It also
// keeps the prompt for readers.
func (w *world) serve() error {
	locals := w.traffic.Next()
	p := &w.prompts[w.written.Load()%remembered]
	p.mu.Lock()
	p.locals = append(p.locals[:0], locals...)
	p.mu.Unlock()
	w.written.Add(1)
	w.seq = kv.AppendSequence(w.seq[:0], locals)
	o := w.owners[w.rng.IntN(len(w.owners))]
	before := o.blocks
	err := o.engine.Serve(locals, w.seq, o)
	w.blocks.Add(o.blocks - before)
	return err
}

// prompt appends a random one of the last prompts to dst; nothing before the first.
func (w *world) prompt(dst []kv.LocalHash, rng *rand.Rand) []kv.LocalHash {
	n := min(w.written.Load(), remembered)
	if n == 0 {
		return dst
	}
	p := &w.prompts[rng.Int64N(n)]
	p.mu.RLock()
	defer p.mu.RUnlock()
	return append(dst, p.locals...)
}

// disturb checks a random owner, and then has it leave for another worker, lose all blocks, or
// replace its blocks by a dump.
func (w *world) disturb() error {
	at := w.rng.IntN(len(w.owners))
	o := w.owners[at]
	w.note(o.check())
	switch what := w.rng.IntN(3); {
	case what == 0 && o.name.Kind == kv.OwnerWorker:
		w.left++
		return w.replaceWorker(at)
	case what == 1:
		w.cleared++
		return o.clear()
	}
	w.replaced++
	return o.replace()
}

// note keeps a difference, up to maxWrong.
func (w *world) note(err error) {
	if err != nil && len(w.wrong) < maxWrong {
		w.wrong = append(w.wrong, err)
	}
}

// replaceWorker has the worker at the index at leave and another worker join, with the emptied
// engine of the first. It checks that the index kept nothing of the first.
func (w *world) replaceWorker(at int) error {
	old := w.owners[at]
	if err := w.index.SetMember(old.name.Worker(), 0, false); err != nil {
		return err
	}
	w.index.RemoveOwner(old.name)
	w.scheduler.RemoveWorker(old.name.Worker())
	if sum, pairs := w.index.Digest(old.name); sum != 0 || pairs != 0 {
		w.note(fmt.Errorf("%s has left, and the index has digest %#x of %d blocks", old.name, sum, pairs))
	}
	old.engine.Reset()
	n, err := w.join(old.engine)
	w.owners[at] = n
	return err
}

// check compares the index with every owner, and its total with the sum of all. It returns the
// number of owners that are right, and all differences of the run.
func (w *world) check() (right int, err error) {
	total := uint64(0)
	for _, o := range w.owners {
		err := o.check()
		if err == nil {
			right++
		}
		w.note(err)
		total += o.pairs
	}
	if n := w.index.Stats().Memberships; uint64(n) != total {
		w.note(fmt.Errorf("the index holds %d pairs, and its owners %d together", n, total))
	}
	return right, errors.Join(w.wrong...)
}
