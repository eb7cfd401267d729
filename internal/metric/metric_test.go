package metric_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

type part struct {
	Hits uint64 `json:"hits" help:"Blocks found."`
	Open bool   `json:"open"`
}

type named struct {
	Frames  uint64  `json:"frames,omitempty" help:"Frames received."`
	Held    uint64  `json:"held" metric:"held_bytes,gauge"`
	Next    uint64  `json:"next" metric:"-"`
	Queue   int     `json:"queue"`
	Rate    float64 `json:"rate"`
	Name    string
	Reasons map[string]uint64 `json:"reasons"`
	Part    part
	own     uint64
}

func TestEachYieldsTheDeclaredNumbersInOrder(t *testing.T) {
	s := named{Frames: 3, Held: 4, Next: 5, Queue: -1, Rate: 0.5, Part: part{Hits: 7, Open: true}, own: 9}
	var got []string
	metric.Each(&s, func(f *metric.Field, v float64) {
		got = append(got, fmt.Sprintf("%s %v %v %s", f.Name, f.Kind, v, f.Help))
	})
	want := []string{
		"frames counter 3 Frames received.", "held_bytes gauge 4 ", "queue gauge -1 ", "rate gauge 0.5 ",
		"hits counter 7 Blocks found.", "open gauge 1 ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := len(metric.Fields[named]()); n != len(want) {
		t.Errorf("%d fields, want %d", n, len(want))
	}
}

func TestAddSumsCountersAndGauges(t *testing.T) {
	sum := named{Frames: 1, Held: 2, Next: 3, Queue: 4}
	from := named{Frames: 10, Held: 20, Next: 30, Queue: 40, Reasons: map[string]uint64{"full": 2}, Part: part{Hits: 5, Open: true}}
	metric.Add(&sum, &from)
	metric.Add(&sum, &from)
	want := named{Frames: 21, Held: 42, Next: 63, Queue: 84, Reasons: map[string]uint64{"full": 4}, Part: part{Hits: 10, Open: true}}
	if d := cmp.Diff(want, sum, cmp.AllowUnexported(named{})); d != "" {
		t.Error(d)
	}
	if from.Reasons["full"] != 2 {
		t.Error("Add changed its argument")
	}
}

func TestAddCountersLeavesGauges(t *testing.T) {
	sum := named{Frames: 1, Held: 2, Queue: 4}
	metric.AddCounters(&sum, &named{Frames: 10, Held: 20, Queue: 40, Part: part{Hits: 5, Open: true}})
	want := named{Frames: 11, Held: 2, Queue: 4, Part: part{Hits: 5}}
	if d := cmp.Diff(want, sum, cmp.AllowUnexported(named{})); d != "" {
		t.Error(d)
	}
}

func TestWrongDeclarationsPanic(t *testing.T) {
	type nameless struct{ N uint64 }
	type twice struct {
		A uint64 `json:"n"`
		B uint64 `json:"b" metric:"n"`
	}
	type option struct {
		A uint64 `json:"n" metric:"n,sum"`
	}
	for name, use := range map[string]func(){
		"no name":    func() { metric.Fields[nameless]() },
		"twice":      func() { metric.Fields[twice]() },
		"bad option": func() { metric.Fields[option]() },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			use()
		})
	}
}
