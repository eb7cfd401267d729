package disk

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scripted is a ceiling whose runs take what is next in took, the last one from
// then on, or fail.
type scripted struct {
	what string
	took []time.Duration
	err  error
}

func (s *scripted) name() string { return s.what }

func (s *scripted) run(_ context.Context, j job) (sample, error) {
	if s.err != nil {
		return sample{}, s.err
	}
	d := s.took[0]
	s.took = s.took[min(1, len(s.took)-1):]
	return j.sample(d), nil
}

func TestFastestCeilingThatWorksCounts(t *testing.T) {
	j := job{block: 4096, count: 4}
	steady := &scripted{what: "steady", took: []time.Duration{20}}
	lucky := &scripted{what: "lucky", took: []time.Duration{10, 30}}
	slow := &scripted{what: "slow", took: []time.Duration{40}}
	late := &scripted{what: "late", took: []time.Duration{50, 1}} // not among the first three
	broken := &scripted{what: "broken", err: errors.New("engine is not built in")}
	got, err := fastest(t.Context(), j, []ceiling{broken, late, slow, lucky, steady})
	if err != nil || got != ceiling(steady) {
		t.Errorf("%v, %v, want steady", got, err)
	}
	if _, err := fastest(t.Context(), j, []ceiling{broken}); err == nil || !strings.Contains(err.Error(), "broken: engine is not built in") {
		t.Errorf("error %v, want why there is nothing to compare with", err)
	}
}

func TestPlainLoopDoesTheWholeJob(t *testing.T) {
	dir := t.TempDir()
	skipWithoutDisk(t, dir)
	j := job{path: filepath.Join(dir, "file"), block: 8192, count: 4 * depth}
	if err := makeFile(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{false, true} {
		j.write = write
		s, err := rawLoop{}.run(t.Context(), j)
		if err != nil || s.bytes != j.bytes() || s.ops != j.count || s.elapsed <= 0 {
			t.Errorf("write %t: %+v, %v", write, s, err)
		}
	}
	j.count++
	j.write = false
	if s, err := (rawLoop{}).run(t.Context(), j); err == nil {
		t.Errorf("a file that is too short was read: %+v", s)
	}
}
