package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// matrix is two families by two buckets, and an explicit class.
func matrix() *Profile {
	tokens := int64(0)
	class := func(name, family, bucket string, quantum int) QueueClass {
		return QueueClass{Name: name, Family: family, Bucket: bucket, Quantum: quantum, ThresholdTokens: &tokens}
	}
	return &Profile{
		DefaultFamily: "standard",
		Buckets:       []Bucket{{0, "short"}, {100, "long"}},
		Classes: []QueueClass{
			class("s-short", "standard", "short", 512), class("s-long", "standard", "long", 128),
			class("b-short", "batch", "short", 64), class("b-long", "batch", "long", 32),
			class("agents", "", "", 256),
		},
	}
}

func TestClassify(t *testing.T) {
	p := matrix()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		uncached int
		want     string
	}{
		{"", 0, "s-short"}, {"", 99, "s-short"}, {"", 100, "s-long"}, {"standard", 1 << 30, "s-long"},
		{"batch", 5, "b-short"}, {"batch", 500, "b-long"},
		{"agents", 5, "agents"}, {"agents", 500, "agents"},
		{"b-long", 5, "s-short"}, // a class of the matrix cannot be chosen by its name
		{"nobody's", 500, "s-long"},
	} {
		if got := p.Classes[p.Classify(c.name, c.uncached)].Name; got != c.want {
			t.Errorf("%q with %d uncached tokens is of class %s, want %s", c.name, c.uncached, got, c.want)
		}
	}
}

func TestProfilesOutOfRangeAreNamed(t *testing.T) {
	for want, change := range map[string]func(*Profile){
		`policy_classes: 0 classes`:                                      func(p *Profile) { p.Classes = nil },
		`first begins at 7 tokens`:                                       func(p *Profile) { p.Buckets[0].MinTokens = 7 },
		`bucket "long" begins at 0 tokens`:                               func(p *Profile) { p.Buckets[1].MinTokens = 0 },
		`class "s-short" is there twice`:                                 func(p *Profile) { p.Classes[1].Name = "s-short" },
		`want both or neither`:                                           func(p *Profile) { p.Classes[4].Family = "standard" },
		`family "standard" has another class for bucket "short"`:         func(p *Profile) { p.Classes[1].Bucket = "short" },
		`cache_bucket "huge" is not one of uncached_isl_buckets`:         func(p *Profile) { p.Classes[1].Bucket = "huge" },
		`family "batch" has no class for bucket "long"`:                  func(p *Profile) { p.Classes = p.Classes[:3] },
		`default_policy_family: "x" is not`:                              func(p *Profile) { p.DefaultFamily = "x" },
		`policy class "agents" quantum: 0 is not in`:                     func(p *Profile) { p.Classes[4].Quantum = 0 },
		`policy class "agents" request limit per worker: -1 is negative`: func(p *Profile) { p.Classes[4].Limits.Requests = -1 },
	} {
		p := matrix()
		change(p)
		if _, err := NewQueue(QueueOptions{Profile: p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestShortestPromptScores: 1 over the tokens that no worker in question has cached. Both workers
// are busy; worker 2 has the prompt's blocks, and only worker 1 has the taint.
func TestShortestPromptScores(t *testing.T) {
	limit := int64(1)
	for _, c := range []struct {
		name   string
		tokens int
		blocks float64
		change func(*Request)
		score  float64
	}{
		{"the best worker", 1024, 60, nil, 1. / 64},
		{"pinned to one with a block", 1024, 1, func(r *Request) { r.Pinned = pin(kv.Worker{ID: 2}) }, 1. / 1008},
		{"pinned to one without", 1024, 60, func(r *Request) { r.Pinned = pin(kv.Worker{ID: 1}) }, 1. / 1024},
		{"nobody has it", 512, 0, nil, 1. / 512},
		{"more cached than asked for", 512, 60, nil, 1},
		{"who has it may not serve", 1024, 60, func(r *Request) { r.RequiredTaints = []string{"a"} }, 1. / 1008},
		{"a jump is a weight", 512, 0, func(r *Request) { r.PriorityJump = 3 }, 4. / 512},
	} {
		s := newScheduler(t, func(o *Options) {
			o.Queue = QueueOptions{QueueClass: QueueClass{ThresholdTokens: &limit, Discipline: WSPT}}
			o.Worker = func(w kv.Worker) WorkerConfig {
				if w.ID == 1 {
					return WorkerConfig{Taints: []string{"a"}}
				}
				return WorkerConfig{}
			}
		})
		members := fleet(2)
		for _, m := range members.List {
			load := &Request{ID: "load of " + m.Worker.String(), Tokens: 100, BlockSize: 16, TrackPrefill: true, Members: members}
			if err := s.Add(load, m.Worker, 0); err != nil {
				t.Fatal(err)
			}
		}
		r := &Request{ID: "r", Book: true, Tokens: c.tokens, BlockSize: 16, TrackPrefill: true, Members: members, Overlaps: []Overlap{{Member: 1, Blocks: c.blocks}}}
		if c.blocks == 60 && c.change != nil { // worker 1 has one block itself
			r.Overlaps = []Overlap{{Member: 0, Blocks: 1}, {Member: 1, Blocks: c.blocks}}
		}
		if c.name == "pinned to one without" {
			r.Overlaps = r.Overlaps[1:]
		}
		if c.change != nil {
			c.change(r)
		}
		w, _, err := s.decideOrQueue(r)
		if err != nil || w == nil {
			t.Fatalf("%s: %v, %v", c.name, w, err)
		}
		if w.item.score != c.score {
			t.Errorf("%s: score %v, want %v", c.name, w.item.score, c.score)
		}
	}
}

// TestClassesShareByQuantum: of 320 equal requests of each of two classes with quanta 512 and 128, the
// first 320 that get a worker are four to one.
func TestClassesShareByQuantum(t *testing.T) {
	p := matrix()
	r := newWaitRoom(t, QueueOptions{Profile: p}, queueWorkers...)
	for n := range 640 {
		i := &Item{Tokens: 64, Class: n % 2, Arrival: float64(n)}
		if err := r.Push(i); err != nil {
			t.Fatal(err)
		}
	}
	r.free[queueWorkers[0]] = true
	served := make(map[int]int)
	for n := range 640 {
		served[r.Next(r.busy).Class]++
		if n == 319 && (served[0] < 254 || served[0] > 257) {
			t.Errorf("of the first 320: %v, want 256 and 64", served)
		}
	}
	if served[0] != 320 || r.ring.Len() != 0 {
		t.Errorf("served %v", served)
	}
}

// TestLimitsAreOfTheClass: one class is full, the other not; the rejection names the class.
func TestLimitsAreOfTheClass(t *testing.T) {
	p := matrix()
	p.Classes[0].Limits.Requests = 1
	r := newWaitRoom(t, QueueOptions{Profile: p}, queueWorkers[:2]...)
	for range 2 {
		if err := r.Push(&Item{Class: 0}); err != nil {
			t.Fatal(err)
		}
	}
	var full *QueueRejection
	if err := r.Push(&Item{Class: 0}); !errors.As(err, &full) || *full != (QueueRejection{"s-short", LimitRequests, 2, 2}) {
		t.Errorf("%v", err)
	}
	if err := r.Push(&Item{Class: 1}); err != nil {
		t.Error(err)
	}
	if s := r.Stats(); s.RejectedRequests != 1 || s.Pending != 3 {
		t.Errorf("%+v", s)
	}
}

// TestDisciplines: whatever arrives, the requests of a class go in the order that a sort finds.
func TestDisciplines(t *testing.T) {
	type key func(i *Item) float64 // lower goes first
	orders := map[Discipline]key{
		FCFS: func(i *Item) float64 { return i.Arrival - i.PriorityJump },
		LCFS: func(i *Item) float64 { return -i.Arrival - i.PriorityJump },
		WSPT: func(i *Item) float64 { return -(1 + i.PriorityJump) / float64(max(1, i.Tokens-i.CachedTokens)) },
		EDF:  func(i *Item) float64 { return i.Arrival - i.PriorityJump + i.Deadline.Seconds() },
	}
	rapid.Check(t, func(rt *rapid.T) {
		d := Discipline(rapid.IntRange(0, len(Disciplines)-1).Draw(rt, "discipline"))
		r := newWaitRoom(t, QueueOptions{QueueClass: QueueClass{Discipline: d}}, queueWorkers...)
		var items []*Item
		for n := range rapid.IntRange(1, 30).Draw(rt, "items") {
			i := &Item{
				Arrival: float64(n / 2), StrictPriority: rapid.Uint32Range(0, 1).Draw(rt, "strict"),
				PriorityJump: float64(rapid.IntRange(0, 2).Draw(rt, "jump")), Tokens: rapid.IntRange(0, 8).Draw(rt, "tokens"),
				CachedTokens: rapid.IntRange(0, 4).Draw(rt, "cached"), Deadline: time.Duration(rapid.IntRange(1, 9).Draw(rt, "deadline")) * time.Second,
			}
			items = append(items, i)
			if err := r.Push(i); err != nil {
				t.Fatal(err)
			}
		}
		slices.SortStableFunc(items, func(a, b *Item) int {
			return cmp.Or(cmp.Compare(b.StrictPriority, a.StrictPriority), cmp.Compare(orders[d](a), orders[d](b)))
		})
		r.free[queueWorkers[0]] = true
		for k, want := range items {
			if got := r.Next(r.busy); got != want {
				rt.Fatalf("%s: number %d is %+v, want %+v", d, k, got, want)
			}
		}
	})
}

// TestADeadlineOfTheClass: a request without a deadline has its class's.
func TestADeadlineOfTheClass(t *testing.T) {
	r := newWaitRoom(t, QueueOptions{QueueClass: QueueClass{Discipline: EDF, Deadline: 5 * time.Second}}, queueWorkers...)
	for _, d := range []time.Duration{6 * time.Second, 0, 4 * time.Second} {
		if err := r.Push(&Item{Deadline: d}); err != nil {
			t.Fatal(err)
		}
	}
	r.free[queueWorkers[0]] = true
	var got []string
	for i := r.Next(r.busy); i != nil; i = r.Next(r.busy) {
		got = append(got, fmt.Sprint(i.Deadline))
	}
	if want := []string{"4s", "0s", "6s"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
