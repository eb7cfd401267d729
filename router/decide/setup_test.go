package decide

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup is a router with what it decides over.
type setup struct {
	t         *testing.T
	router    *Router
	index     *index.Index
	scheduler *schedule.Scheduler
	logged    *observer.ObservedLogs
	seen      *recorder
	blockSize int
}

// change is an option of newSetup.
type change func(o *Options, c *config.Config, s *schedule.Options)

// newSetup makes a router of 16 tokens a block, with the first of equal workers
// winning, and workers 1 and 2.
func newSetup(t *testing.T, changes ...change) *setup {
	t.Helper()
	core, logged := observer.New(zapcore.DebugLevel)
	x, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out := &setup{t: t, index: x, logged: logged, seen: &recorder{}, blockSize: 16}
	c := config.Default()
	c.FirstOfEqual = true
	o := Options{Config: &c, Index: x, Log: zap.New(core), Observer: out.seen,
		BlockSize: func() int { return out.blockSize }}
	var s schedule.Options
	s.PrefillDuration = func(_ kv.Worker, tokens, cached int) time.Duration { return out.router.PrefillDuration(tokens, cached) }
	for _, f := range changes {
		f(&o, &c, &s)
	}
	s.Config = c.Schedule()
	if out.scheduler, err = schedule.New(s); err != nil {
		t.Fatal(err)
	}
	o.Scheduler = out.scheduler
	if out.router, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := out.router.Close(); err != nil {
			t.Error(err)
		}
	})
	out.member(1, 0)
	out.member(2, 0)
	return out
}

func worker(id uint64) kv.Worker { return kv.Worker{ID: kv.WorkerID(id)} }

func (s *setup) member(id, pool uint64) {
	s.t.Helper()
	if err := s.index.SetMember(worker(id), pool, true); err != nil {
		s.t.Fatal(err)
	}
}

// store puts the blocks of q from first on into a tier of an owner.
func (s *setup) store(owner kv.Owner, tier kv.Tier, q *Query, first, end int) {
	s.t.Helper()
	var b blocks
	b.hash(q, s.blockSize, s.router.hashesPairs())
	sequence := kv.AppendSequence(nil, b.locals)
	e := kvevent.RouterEvent{Owner: owner, Tier: tier, Kind: kvevent.Stored}
	if first > 0 {
		e.Parent, e.HasParent = sequence[first-1], true
	}
	for i := first; i < end; i++ {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: sequence[i], Local: b.locals[i]})
	}
	if err := s.index.Apply(&e); err != nil {
		s.t.Fatal(err)
	}
}

func (s *setup) best(q *Query) Match {
	s.t.Helper()
	m, err := s.router.FindBestMatchDetails(s.t.Context(), q)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// choose is best with the overlap in blocks and the error.
func (s *setup) choose(q *Query) (kv.Worker, uint32, error) {
	m, err := s.router.FindBestMatchDetails(s.t.Context(), q)
	return m.Worker, m.OverlapBlocks(), err
}

// estimate returns what a worker has of a prompt.
func (s *setup) estimate(q *Query, w kv.Worker) (Overlap, error) {
	all, err := s.router.Overlaps(q)
	for _, o := range all {
		if o.Worker == w {
			return o, err
		}
	}
	return Overlap{Worker: w}, err
}

// overlapBlocks returns the same in rounded blocks.
func (s *setup) overlapBlocks(q *Query, w kv.Worker) (uint32, error) {
	o, err := s.estimate(q, w)
	return uint32(math.Round(o.Effective)), err
}

func (s *setup) overlap(q *Query, id uint64) uint32 {
	s.t.Helper()
	n, err := s.overlapBlocks(q, worker(id))
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// recorder is an Observer.
type recorder struct {
	mu       sync.Mutex
	decided  int
	failures int
	last     Timings
	lives    []string
}

func (r *recorder) Decided(d *Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decided++
	r.last = d.Timings
}

func (r *recorder) PrefillCompleted(id string) { r.told("prefill completed", id) }
func (r *recorder) Freed(id string)            { r.told("freed", id) }
func (r *recorder) OutputBlock(string)         {}

func (r *recorder) Added(q *Query, w kv.Worker, blockSize, cached int) {
	r.told(fmt.Sprintf("added %d tokens in blocks of %d, %d cached, to %s:", len(q.Tokens), blockSize, cached, w), q.ID)
}

func (r *recorder) told(what, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lives = append(r.lives, what+" "+id)
}

func (r *recorder) SharedCacheFailed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
}

// tokens are n tokens that begin with first.
func tokens(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first + i)
	}
	return out
}

func (s *setup) forget(ids ...uint64) {
	s.t.Helper()
	for _, id := range ids {
		if err := s.index.SetMember(worker(id), 0, false); err != nil {
			s.t.Fatal(err)
		}
	}
}
