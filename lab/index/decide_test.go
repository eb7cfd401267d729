package index

import (
	"math"
	"testing"

	"github.com/blockyard-ai/blockyard/router/index"
)

// A small decision with hits everywhere gives all figures and is checked.
func TestScoreMeasuresAWholeDecision(t *testing.T) {
	f, err := scoreOf(t.Context(), 300, 5, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, figure := range []string{figDecisionMs, figHashMs, figMatchMs, figP99} {
		if !(f[figure] > 0) || math.IsInf(f[figure], 0) {
			t.Errorf("%s is %g", figure, f[figure])
		}
	}
	if f[figN] != 4 {
		t.Errorf("%g decisions were timed, want 4", f[figN])
	}
}

// A decision about a prompt that not all workers hold is no measurement.
func TestADecisionWithoutAllHitsIsAnError(t *testing.T) {
	d, err := newDecision(t.Context(), 3, make([]uint32, 64))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := d.holdAndRun(i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.decide(); err == nil {
		t.Error("no error with one worker that holds nothing")
	}
}

// Choices are timed without hits, with some and with all, and with booking; those
// that count allocate nothing that would show.
func TestSelectMeasuresEveryCase(t *testing.T) {
	f, err := selectOf(t.Context(), 300, 30, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, figure := range []string{figNoHits, figSomeHits, figAllHits, figBooked} {
		if !(f[figure] > 0) {
			t.Errorf("%s is %g", figure, f[figure])
		}
	}
	if f[figP50] != max(f[figNoHits], f[figSomeHits]) {
		t.Errorf("p50 is %g of %g and %g", f[figP50], f[figNoHits], f[figSomeHits])
	}
}

// Hits lie in the order of members, each of at least one block.
func TestHitsAreInOrder(t *testing.T) {
	hits := hitsOn(30, 100)
	if len(hits) != 30 {
		t.Fatalf("%d hits", len(hits))
	}
	last := index.Hit{Member: -1}
	for _, h := range hits {
		if h.Member <= last.Member || h.Member >= 100 || h.Hits.Total() == 0 {
			t.Errorf("%+v after %+v", h, last)
		}
		last = h
	}
}
