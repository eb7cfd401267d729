package loggen

import (
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tiny() Options {
	return Options{
		Seed: 7, Engines: 5, Pool: 500, Requests: 300, Sessions: 12, Prefixes: 3, MaxPrompt: 600, Affinity: 0.5, Forks: 0.2,
	}
}

// held is the plainest index there is: a set of blocks for each engine.
type held []map[kv.SequenceHash]bool

func (h held) depths(seq []kv.SequenceHash) []uint32 {
	d := make([]uint32, len(h))
	for e := range h {
		for int(d[e]) < len(seq) && h[e][seq[d[e]]] {
			d[e]++
		}
	}
	return d
}

// The answers and totals in a log are those that a set of blocks for each engine
// gives, whatever the shape of the log.
func TestGeneratedAnswersAreRight(t *testing.T) {
	for name, o := range map[string]Options{"plain": tiny(), "unfriendly": tiny().Unfriendly(), "worst": tiny().Worst(), "one-block": tiny().OneBlock()} {
		t.Run(name, func(t *testing.T) {
			words, err := Generate(o)
			if err != nil {
				t.Fatal(err)
			}
			l, err := oplog.Parse(words)
			if err != nil {
				t.Fatal(err)
			}
			h := make(held, o.Engines)
			for i := range h {
				h[i] = make(map[kv.SequenceHash]bool)
			}
			got := replay(t, l, h, o.WithDefaults().Chunk)
			if want := l.Header().Answers; got != want {
				t.Errorf("the log says %+v, it is %+v", want, got)
			}
			if a := got; a.Score == 0 || a.Memberships < uint64(o.Pool) || a.Distinct >= a.Memberships || l.Header().Removed == 0 {
				t.Errorf("the log shows little: %+v", l.Header())
			}
		})
	}
}

func replay(t *testing.T, l *oplog.Log, h held, chunk int) (a oplog.Answers) {
	t.Helper()
	var queries [][]kv.SequenceHash
	for i, r := range l.Records() {
		switch r.Op {
		case oplog.Stored:
			before := r.Parent
			for _, b := range r.Blocks {
				want := kv.Chain(before, b.Local)
				if before == 0 {
					want = kv.SequenceHash(b.Local)
				}
				if b.Hash != want || h[r.Engine][b.Hash] {
					t.Fatalf("record %d stores %#x: chain says %#x; held before: %t", i, b.Hash, want, h[r.Engine][b.Hash])
				}
				h[r.Engine][b.Hash], before = true, b.Hash
			}
			if len(r.Blocks) > chunk {
				t.Fatalf("record %d stores %d blocks, more than %d", i, len(r.Blocks), chunk)
			}
		case oplog.Removed:
			for _, s := range r.Removed {
				if !h[r.Engine][s] {
					t.Fatalf("record %d removes %#x, which is not held", i, s)
				}
				delete(h[r.Engine], s)
			}
		case oplog.Query:
			seq := kv.AppendSequence(nil, r.Locals)
			queries = append(queries, seq)
			total, best, _ := sum(h.depths(seq))
			a.Score, a.Best = a.Score+total, a.Best+best
		}
	}
	distinct := make(map[kv.SequenceHash]bool)
	for _, blocks := range h {
		a.Memberships += uint64(len(blocks))
		for b := range blocks {
			distinct[b] = true
		}
	}
	a.Distinct = uint64(len(distinct))
	for _, seq := range queries {
		total, best, _ := sum(h.depths(seq))
		a.FinalScore, a.FinalBest = a.FinalScore+total, a.FinalBest+best
	}
	return a
}

// Equal options give equal logs and another seed another one.
func TestGenerateIsAFunctionOfItsOptions(t *testing.T) {
	a, _ := Generate(tiny())
	b, err := Generate(tiny())
	if err != nil || !slices.Equal(a, b) {
		t.Errorf("two logs of one seed differ (%v)", err)
	}
	o := tiny()
	o.Seed++
	if c, err := Generate(o); err != nil || slices.Equal(a, c) {
		t.Errorf("two seeds give one log (%v)", err)
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"engines 5000: want 1 to 4096":                        func(o *Options) { o.Engines = 5000 },
		"pool 4: want 16 to 1048576":                          func(o *Options) { o.Pool = 4 },
		"affinity 2: want 0 to 1":                             func(o *Options) { o.Affinity = 2 },
		"forks -1: want 0 to 1":                               func(o *Options) { o.Forks = -1 },
		`order "any": want tail-first, shuffled or scattered`: func(o *Options) { o.Order = "any" },
	} {
		o := tiny()
		change(&o)
		if err := o.Validate(); err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
		if _, err := Generate(o); err == nil {
			t.Errorf("%q: a log was made", want)
		}
	}
}

// A dump names every held block once, with the right parent, also when prefixes
// have holes; after a reset there is nothing.
func TestEngineDumpIsWhatIsHeld(t *testing.T) {
	o := tiny()
	o.Order, o.Chunk = Scattered, 16
	e, traffic := NewEngine(o, 0), NewTraffic(o)
	for range 50 {
		locals := traffic.Next()
		if err := e.Serve(locals, kv.AppendSequence(nil, locals), drop{}); err != nil {
			t.Fatal(err)
		}
	}
	d := dump{parents: make(map[kv.SequenceHash]kv.SequenceHash)}
	if err := e.Dump(&d); err != nil {
		t.Fatal(err)
	}
	if len(d.parents) != e.Held() || d.named != e.Held() || e.Held() != o.Pool {
		t.Errorf("%d blocks named, %d different, %d held, pool %d", d.named, len(d.parents), e.Held(), o.Pool)
	}
	for h, p := range d.parents {
		if at := e.blocks[h]; at == 0 || e.slots[at].parent != p {
			t.Errorf("block %#x with parent %#x: %+v is held", h, p, e.slots[at])
		}
	}
	e.Reset()
	if e.Held() != 0 || e.Dump(failing{}) != nil {
		t.Errorf("after a reset %d blocks are held", e.Held())
	}
}

// What a sink refuses ends the request with its error.
func TestAnEngineStopsWithTheErrorOfItsSink(t *testing.T) {
	o := tiny()
	e, locals := NewEngine(o, 0), NewTraffic(o).Next()
	if err := e.Serve(locals, kv.AppendSequence(nil, locals), failing{}); err != errRefused {
		t.Errorf("error %v", err)
	}
}

// A twin says what is wrong with a log that stores or removes twice.
func TestTwinRefusesWhatCannotBe(t *testing.T) {
	w := NewTwin(70)
	blocks := []kvevent.StoredBlock{{Hash: 1}}
	if err := w.Store(69, blocks); err != nil {
		t.Fatal(err)
	}
	if w.Store(69, blocks) == nil || w.Remove(5, []kv.SequenceHash{1}) == nil {
		t.Error("stored twice or removed what is not there, without an error")
	}
	if w.Memberships() != 1 || w.Distinct() != 1 || w.Depths([]kv.SequenceHash{1, 2})[69] != 1 {
		t.Errorf("%d pairs, %d blocks, depths %v", w.Memberships(), w.Distinct(), w.Depths([]kv.SequenceHash{1, 2}))
	}
}

type drop struct{}

func (drop) Stored(kv.SequenceHash, []kvevent.StoredBlock) error { return nil }
func (drop) Removed([]kv.SequenceHash) error                     { return nil }

type refused struct{}

func (refused) Error() string { return "refused" }

var errRefused error = refused{}

type failing struct{}

func (failing) Stored(kv.SequenceHash, []kvevent.StoredBlock) error { return errRefused }
func (failing) Removed([]kv.SequenceHash) error                     { return errRefused }

type dump struct {
	drop
	parents map[kv.SequenceHash]kv.SequenceHash
	named   int
}

func (d *dump) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) error {
	for _, b := range blocks {
		d.parents[b.Hash], parent = parent, b.Hash
		d.named++
	}
	return nil
}
