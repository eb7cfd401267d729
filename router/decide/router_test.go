package decide

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Booking needs a name, looking does not.
func TestUpdateStatesNeedsAContextID(t *testing.T) {
	s := newSetup(t)
	_, err := s.router.FindBestMatchDetails(t.Context(), &Query{Tokens: tokens(1, 16), UpdateStates: true})
	if !errors.Is(err, ErrNoContextID) || err.Error() != "context_id must be provided when update_states is true" {
		t.Errorf("error %v", err)
	}
	if _, _, err := s.choose(&Query{Tokens: tokens(1, 16)}); err != nil {
		t.Error(err)
	}
	if n := s.scheduler.Stats().Load.Requests; n != 0 {
		t.Errorf("%d requests are booked", n)
	}
}

// A request is booked once, its prefill can be marked while it runs, and to free it
// twice is no error.
func TestALifeOfARequest(t *testing.T) {
	s := newSetup(t)
	q := &Query{ID: "r", Tokens: tokens(1, 64), UpdateStates: true}
	m := s.best(q)
	if !m.Booked || m.Worker != worker(1) {
		t.Fatalf("match %+v", m)
	}
	if _, err := s.router.FindBestMatchDetails(t.Context(), q); !errors.Is(err, load.ErrDuplicateRequest) {
		t.Errorf("a second booking: %v", err)
	}
	if w := s.best(&Query{Tokens: tokens(500, 64)}).Worker; w != worker(2) {
		t.Errorf("the loaded worker wins: %s", w)
	}
	half := 0.5
	for _, call := range []func(string) error{
		s.router.MarkPrefillCompleted,
		func(id string) error { return s.router.AddOutputBlock(id, &half) },
		func(id string) error { return s.router.AddOutputBlock(id, nil) },
	} {
		if err := call("r"); err != nil {
			t.Error(err)
		}
		if err := call("nobody"); !errors.Is(err, load.ErrUnknownRequest) {
			t.Errorf("a request that is not known: %v", err)
		}
	}
	if bad := 2.0; s.router.AddOutputBlock("r", &bad) == nil {
		t.Error("a decay of 2 is taken")
	}
	if want := []string{"prefill completed r"}; !slices.Equal(s.seen.lives, want) {
		t.Errorf("the observer heard %q, want %q", s.seen.lives, want)
	}
	if !s.router.Free("r") || s.router.Free("r") || s.router.Free("nobody") {
		t.Error("free does not say what was active")
	}
	if want := []string{"prefill completed r", "freed r"}; !slices.Equal(s.seen.lives, want) {
		t.Errorf("the observer heard %q, want %q", s.seen.lives, want)
	}
	if err := s.router.MarkPrefillCompleted("r"); !errors.Is(err, load.ErrUnknownRequest) {
		t.Errorf("a freed request: %v", err)
	}
}

// AddRequest books what somebody else decided; what fails is logged as a warning and
// counted.
func TestAddRequestFailsWithAWarning(t *testing.T) {
	s := newSetup(t)
	q := &Query{ID: "r", Tokens: tokens(1, 64)}
	if err := s.router.AddRequest(q, worker(1), 16); err != nil {
		t.Fatal(err)
	}
	loads, err := s.router.GetPotentialLoads(&Query{Tokens: tokens(1, 64)})
	if err != nil || len(loads) != 2 || loads[0].PrefillTokens != 48+64 || loads[0].DecodeBlocks != 4 || loads[1].PrefillTokens != 64 {
		t.Errorf("potential loads %+v, %v", loads, err)
	}
	for i, c := range []struct {
		q    *Query
		want error
	}{{q, load.ErrDuplicateRequest}, {&Query{Tokens: tokens(1, 4)}, ErrNoContextID}} {
		if err := s.router.AddRequest(c.q, worker(1), 0); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
		if n := s.logged.FilterMessage("a request is not booked").FilterLevelExact(zapcore.WarnLevel).Len(); n != i+1 || s.router.Unbooked() != uint64(n) {
			t.Errorf("%d warnings, %d counted; want %d", n, s.router.Unbooked(), i+1)
		}
	}
}

func TestWithoutWorkersThereIsNoDecision(t *testing.T) {
	s := newSetup(t)
	q := &Query{Tokens: tokens(1, 16)}
	s.blockSize = 0
	for name, call := range map[string]func() error{
		"find_best_match":     func() error { _, _, err := s.choose(q); return err },
		"get_potential_loads": func() error { _, err := s.router.GetPotentialLoads(q); return err },
		"overlaps":            func() error { _, err := s.router.Overlaps(q); return err },
		"add_request":         func() error { return s.router.AddRequest(&Query{ID: "a", Tokens: q.Tokens}, worker(1), 0) },
	} {
		if err := call(); !errors.Is(err, ErrNoWorkers) {
			t.Errorf("%s without a block size: %v", name, err)
		}
	}
	s.blockSize = 16
	s.forget(1, 2)
	if _, _, err := s.choose(q); !errors.Is(err, ErrNoWorkers) {
		t.Errorf("without a member: %v", err)
	}
}

// Workers that nobody announced can be made known, and only a worker with one rank
// has a rank that can be named.
func TestRegisteredWorkersAndTheirRanks(t *testing.T) {
	s := newSetup(t)
	for _, id := range []kv.WorkerID{2, 7, 9} {
		if err := s.index.SetMember(kv.Worker{ID: id}, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.router.Workers(); n != 4 {
		t.Errorf("%d workers, want 4", n)
	}
	if err := s.index.SetMember(kv.Worker{ID: 7, Rank: 1}, 0, true); err != nil {
		t.Fatal(err)
	}
	if err := s.index.SetMember(kv.Worker{ID: 12, Rank: 3}, 0, true); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[kv.WorkerID]int{1: 0, 2: 0, 7: -1, 9: 0, 12: 3, 13: -1, 0: -1} {
		rank, ok := s.router.UniqueDPRankForWorker(id)
		if ok != (want >= 0) || ok && rank != kv.DPRank(want) {
			t.Errorf("worker %d: rank %d, %t; want %d", id, rank, ok, want)
		}
	}
	if n := s.router.Workers(); n != 5 {
		t.Errorf("%d workers, want 5: ranks of one count once", n)
	}
}

// Adapter, namespace and multimodal objects make other blocks of the same tokens; the
// order of objects, and where in the block they lie, does not.
func TestWhatMakesABlock(t *testing.T) {
	s := newSetup(t)
	image := func(hashes ...uint64) *BlockExtraInfo {
		info := &BlockExtraInfo{}
		for i, h := range hashes {
			info.MMObjects = append(info.MMObjects, MMObject{Hash: h, Offsets: [][2]uint64{{uint64(i), 16}}})
		}
		return info
	}
	prompt := tokens(1, 48)
	all := map[string]*Query{
		"text":        {Tokens: prompt},
		"adapter":     {Tokens: prompt, LoRA: "a"},
		"namespace":   {Tokens: prompt, Salt: "a"},
		"image":       {Tokens: prompt, BlockMMInfos: []*BlockExtraInfo{nil, image(5, 6)}},
		"other image": {Tokens: prompt, BlockMMInfos: []*BlockExtraInfo{nil, image(5, 7)}},
	}
	same := map[string]*Query{
		"text":  {Tokens: prompt, BlockMMInfos: []*BlockExtraInfo{nil, {}, nil}},
		"image": {Tokens: prompt, BlockMMInfos: []*BlockExtraInfo{nil, image(6, 5)}},
	}
	for name, q := range all {
		s := newSetup(t)
		s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, q, 0, 3)
		for other, asked := range all {
			want := uint32(0)
			switch {
			case other == name:
				want = 3
			case strings.Contains(name+other, "image") && !strings.Contains("adapter namespace", name) && !strings.Contains("adapter namespace", other):
				want = 1 // up to the block with the image
			}
			if n, err := s.overlapBlocks(asked, worker(2)); err != nil || n != want {
				t.Errorf("%s has %d blocks of %s, %v; want %d", name, n, other, err, want)
			}
		}
		if q := same[name]; q != nil {
			if n, err := s.overlapBlocks(q, worker(2)); err != nil || n != 3 {
				t.Errorf("the same %s in other words: %d blocks, %v", name, n, err)
			}
		}
	}
	for want, q := range map[string]*Query{
		"block_mm_infos: 2 entries for 1 blocks": {Tokens: tokens(1, 16), BlockMMInfos: make([]*BlockExtraInfo, 2)},
		"block_mm_infos[0]: 4097 objects":        {Tokens: tokens(1, 3), BlockMMInfos: []*BlockExtraInfo{image(make([]uint64, 4097)...)}},
		"router_temperature":                     {Tokens: tokens(1, 16), Override: &config.Override{RouterTemperature: new(math.Inf(1))}},
	} {
		if _, err := s.router.FindBestMatchDetails(t.Context(), q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Engines that hash pairs name a block by the token behind it too, so that the last
// block of a prompt needs one more.
func TestEagleHashesPairs(t *testing.T) {
	s := newSetup(t, func(o *Options, _ *config.Config, _ *schedule.Options) { o.IsEagle = func() bool { return true } })
	s.blockSize = 4
	s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, &Query{Tokens: tokens(1, 9)}, 0, 2)
	for n, want := range map[int]uint32{4: 0, 5: 1, 8: 1, 9: 2, 12: 2} {
		if got, err := s.overlapBlocks(&Query{Tokens: tokens(1, n)}, worker(2)); err != nil || got != want {
			t.Errorf("%d tokens: %d blocks, %v; want %d", n, got, err, want)
		}
	}
	var h kv.Hasher
	var b blocks
	b.hash(&Query{Tokens: tokens(1, 5)}, 4, true)
	if len(b.locals) != 1 || b.locals[0] != h.Local(tokens(1, 5), kv.HashSeed, nil) {
		t.Errorf("a pair window of five tokens hashes to %v", b.locals)
	}
	m := s.best(&Query{ID: "r", Tokens: tokens(1, 4), UpdateStates: true})
	if n := s.scheduler.Stats().Load.Blocks; n != 0 || m.CachedTokens != 0 {
		t.Errorf("a prompt without a whole pair window keeps %d blocks", n)
	}
}

// At debug level each worker's cost is explained, in the words that people grep for.
func TestFormulasAreLogged(t *testing.T) {
	s := newSetup(t)
	q := &Query{ID: "r", Tokens: tokens(1, 64)}
	s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, q, 0, 3)
	s.best(q)
	var lines []string
	for _, e := range s.logged.FilterMessageSnippet("Formula for").All() {
		lines = append(lines, e.Message)
	}
	want := []string{"Formula for worker_1: 8.0 = 1.0 * 4.0 + 4.0 (cached_blocks: 0)", "Formula for worker_2: 5.0 = 1.0 * 1.0 + 4.0 (cached_blocks: 3)"}
	if !slices.Equal(lines, want) {
		t.Errorf("logged %q, want %q", lines, want)
	}
	if n := s.logged.FilterMessageSnippet("[ROUTING_INPUT]").FilterField(zap.Int("num_blocks", 4)).Len(); n != 1 {
		t.Errorf("%d lines of the input", n)
	}
}

// At info level the chosen worker's line is logged at most once a second.
func TestFormulaIsSampledAtInfoLevel(t *testing.T) {
	s := newSetup(t)
	core, logged := observer.New(zap.InfoLevel)
	s.router.log = zap.New(core)
	q := &Query{ID: "r", Tokens: tokens(1, 64)}
	s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, q, 0, 3)
	for range 5 {
		s.best(q)
	}
	s.router.lastExplained.Store(s.router.lastExplained.Load() - int64(explainInterval))
	s.best(q)
	want := "Formula for worker_2: 5.0 = 1.0 * 1.0 + 4.0 (cached_blocks: 3)"
	if n := logged.FilterMessage(want).Len(); n != 2 || logged.Len() != 2 {
		t.Errorf("%d lines, %d of them %q; want 2: %v", logged.Len(), n, want, logged.All())
	}
}

// A query may ask for the compared workers; others get none.
func TestCandidatesAreReturnedToWhoAsks(t *testing.T) {
	s := newSetup(t)
	q := &Query{ID: "r", Tokens: tokens(1, 64), Explain: true}
	s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, q, 0, 3)
	m := s.best(q)
	if len(m.Candidates) != 2 {
		t.Fatalf("%d candidates", len(m.Candidates))
	}
	best, other := m.Candidates[0], m.Candidates[1]
	if best.Worker != worker(2) || other.Worker != worker(1) || best.Credit != 3 || best.Prefill != 1 || other.Credit != 0 || other.Prefill != 4 {
		t.Errorf("candidates %+v", m.Candidates)
	}
	if got := formula(&m.Result); got != best.Formula() {
		t.Errorf("the choice reads %q, its candidate %q", got, best.Formula())
	}
	q.Explain = false
	if m := s.best(q); m.Candidates != nil {
		t.Errorf("candidates nobody asked for: %v", m.Candidates)
	}
}

func TestOptionsNameWhatIsMissing(t *testing.T) {
	s := newSetup(t)
	fine := Options{Index: s.index, Scheduler: s.scheduler, BlockSize: func() int { return 1 }}
	bad := config.Default()
	bad.HostCacheHitWeight = 2
	for want, f := range map[string]func(*Options){
		"index":                 func(o *Options) { o.Index = nil },
		"scheduler":             func(o *Options) { o.Scheduler = nil },
		"block size":            func(o *Options) { o.BlockSize = nil },
		"shared cache timeout":  func(o *Options) { o.SharedCacheTimeout = -1 },
		"host_cache_hit_weight": func(o *Options) { o.Config = &bad },
	} {
		o := fine
		f(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r, err := New(fine)
	if err != nil || r.hashesPairs() || r.PendingCount() != 0 || r.PendingTokens() != 0 {
		t.Errorf("defaults: %+v, %v", r, err)
	}
}
