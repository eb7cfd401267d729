package index

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tinyOptions() loggen.Options {
	return loggen.Options{Seed: 3, Engines: 4, Pool: 1500, Requests: 150, Sessions: 10, Prefixes: 3, MaxPrompt: 1000, Affinity: 0.5}
}

// tinyLog returns the path of a small log, after change has had its way with its words.
func tinyLog(t testing.TB, o loggen.Options, change func(words []uint64)) string {
	t.Helper()
	words, err := loggen.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(words)
	}
	path := filepath.Join(t.TempDir(), "tiny.log")
	if err := oplog.Save(path, words); err != nil {
		t.Fatal(err)
	}
	return path
}

func measurePart(t testing.TB, part Part, path string) (Figures, error) {
	t.Helper()
	o := order{Part: part, Log: path, Busy: time.Millisecond}
	return o.measure(context.Background())
}

// Every part of a log gives its figures, on logs that are easy and on logs that are
// not.
func TestEveryPartMeasuresSmallLogs(t *testing.T) {
	for name, o := range map[string]loggen.Options{
		"plain": tinyOptions(), "unfriendly": tinyOptions().Unfriendly(), "worst": tinyOptions().Worst(), "one-block": tinyOptions().OneBlock(),
	} {
		path := tinyLog(t, o, nil)
		for part, figures := range map[Part][]string{
			PartEvents:  {figMops, figSeconds, figCPU},
			PartMixed:   {figMops},
			PartLookups: {figP50, figP99, figN, "final_" + figP50, "final_" + figN},
			PartBusy:    {figP50, figP99, figN, figMops},
			PartVisible: {figP50, figP99, figN},
			PartMemory:  {figPairs},
		} {
			f, err := measurePart(t, part, path)
			if err != nil {
				t.Errorf("%s, %s: %v", name, part, err)
			}
			for _, figure := range figures {
				if !(f[figure] > 0) || math.IsInf(f[figure], 0) {
					t.Errorf("%s, %s: %s is %g", name, part, figure, f[figure])
				}
			}
		}
	}
}

// A log whose answers, totals or blocks are not what an index finds fails each part
// that checks them, with both numbers.
func TestWrongAnswersAreErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		word int
		part Part
		want string
	}{
		{"score", 10, PartMixed, "queries in order: the answers add up to"},
		{"best", 11, PartMixed, "queries in order"},
		{"score of timed queries", 10, PartLookups, "timed queries in order"},
		{"final score", 12, PartLookups, "queries after the last record"},
		{"final best beside a writer", 13, PartBusy, "queries after the last record"},
		{"memberships", 8, PartEvents, "word 8 (memberships) is"},
		{"memberships, by memory", 8, PartMemory, "word 8 (memberships) is"},
		{"distinct", 9, PartEvents, "the index holds"},
	} {
		path := tinyLog(t, tinyOptions(), func(words []uint64) { words[c.word]++ })
		if _, err := measurePart(t, c.part, path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// An index that loses a block is found out by its digest, and one that takes a block
// for another by its answers.
func TestAChangedBlockIsFound(t *testing.T) {
	o := tinyOptions()
	o.Requests = 5 // nothing is evicted
	path := tinyLog(t, o, nil)
	r, err := openReplay(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.log.Close()
	x, err := newIndex(o.Engines)
	if err != nil {
		t.Fatal(err)
	}
	if err := apply(x, r.events[1:]); err != nil {
		t.Fatal(err)
	}
	if err := r.checkHeld(x); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("an event was left out, error %v", err)
	}
	changed := tinyLog(t, o, func(words []uint64) {
		for at := 16; ; at++ {
			if words[at]&0xff == uint64(oplog.Query) && words[at]>>8&0xffffff == 0 {
				words[at+2] ^= 1 // the first block that is asked for
				return
			}
		}
	})
	if _, err := measurePart(t, PartLookups, changed); err == nil || !strings.Contains(err.Error(), "queries") {
		t.Errorf("a query was changed, error %v", err)
	}
}

// Orders that make no sense are refused by name.
func TestServePartRefusesWhatItDoesNotKnow(t *testing.T) {
	path := tinyLog(t, tinyOptions(), nil)
	for in, want := range map[string]string{
		"":                                    "order:",
		`{"part":"all","log":"` + path + `"}`: `part "all" is not known`,
		`{"part":"events","log":"/nowhere"}`:  "/nowhere",
	} {
		var out strings.Builder
		if err := ServePart(t.Context(), strings.NewReader(in), &out); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: error %v, output %q", in, err, out.String())
		}
	}
}

// Quantiles are those at floor(q(n-1)) of the sorted times, in microseconds.
func TestQuantilesByIndex(t *testing.T) {
	ns := make([]uint32, 100)
	for i := range ns {
		ns[i] = uint32(1000 * (100 - i))
	}
	if q := quantiles(ns, 0, 0.5, 0.99, 1); q[0] != 1 || q[1] != 50 || q[2] != 99 || q[3] != 100 {
		t.Errorf("quantiles %v of 1 to 100", q)
	}
	if q := quantiles(nil, 0.5); q[0] != 0 {
		t.Errorf("median of nothing: %v", q)
	}
}
