package queue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// matrix is two families by two buckets, and an explicit class.
func matrix() *Profile {
	tokens := int64(0)
	class := func(name, family, bucket string, quantum int) Class {
		return Class{Name: name, Family: family, Bucket: bucket, Quantum: quantum, ThresholdTokens: &tokens}
	}
	return &Profile{
		DefaultFamily: "standard",
		Buckets:       []Bucket{{0, "short"}, {100, "long"}},
		Classes: []Class{
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
		if _, err := New(Options{Profile: p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestClassesShareByQuantum: of 320 equal requests of each of two classes with quanta 512 and 128, the
// first 320 that get a worker are four to one.
func TestClassesShareByQuantum(t *testing.T) {
	p := matrix()
	r := newWaitRoom(t, Options{Profile: p}, queueWorkers...)
	for n := range 640 {
		i := &Item{Tokens: 64, Class: n % 2, Arrival: float64(n)}
		if err := r.Push(i); err != nil {
			t.Fatal(err)
		}
	}
	r.free[queueWorkers[0]] = true
	served := make(map[int]int)
	for n := range 640 {
		served[r.next().Class]++
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
	r := newWaitRoom(t, Options{Profile: p}, queueWorkers[:2]...)
	for range 2 {
		if err := r.Push(&Item{Class: 0}); err != nil {
			t.Fatal(err)
		}
	}
	var full *Rejection
	if err := r.Push(&Item{Class: 0}); !errors.As(err, &full) || *full != (Rejection{"s-short", LimitRequests, 2, 2}) {
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
		r := newWaitRoom(t, Options{Class: Class{Discipline: d}}, queueWorkers...)
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
			if got := r.next(); got != want {
				rt.Fatalf("%s: number %d is %+v, want %+v", d, k, got, want)
			}
		}
	})
}

// TestADeadlineOfTheClass: a request without a deadline has its class's.
func TestADeadlineOfTheClass(t *testing.T) {
	r := newWaitRoom(t, Options{Class: Class{Discipline: EDF, Deadline: 5 * time.Second}}, queueWorkers...)
	for _, d := range []time.Duration{6 * time.Second, 0, 4 * time.Second} {
		if err := r.Push(&Item{Deadline: d}); err != nil {
			t.Fatal(err)
		}
	}
	r.free[queueWorkers[0]] = true
	var got []string
	for i := r.next(); i != nil; i = r.next() {
		got = append(got, fmt.Sprint(i.Deadline))
	}
	if want := []string{"4s", "0s", "6s"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
