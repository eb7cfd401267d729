package demo

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSelftestWritesItsVerdict(t *testing.T) {
	for _, c := range []struct {
		found  uint64
		passed bool
	}{{4, true}, {3, false}} {
		o, errs := testOptions(t)
		s := &selftest{report: SelftestReport{
			HostFlipped: 4, WrongBytes: c.found, DiskFlipped: 4, Misses: 4, Reasons: []string{},
		}}
		s.exactly("wrong bytes", c.found, 4)
		s.atLeast("refused reads", 5, 4)
		err := s.conclude(&o, &display{out: io.Discard})
		if c.passed && err != nil || !c.passed && !errors.Is(err, ErrFailed) {
			t.Errorf("%d found: error %v", c.found, err)
		}
		want := map[string]any{
			"host_flipped": 4.0, "wrong_bytes": float64(c.found), "disk_flipped": 4.0, "disk_wrong_bytes": 0.0,
			"misses": 4.0, "passed": c.passed, "reasons": []any{},
		}
		if !c.passed {
			want["reasons"] = []any{"selftest: wrong bytes: 3, want 4"}
			if got := errs.String(); got != "selftest: wrong bytes: 3, want 4\n" {
				t.Errorf("reasons %q", got)
			}
		}
		var got map[string]any
		b, err := os.ReadFile(o.Report)
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%d found: report (%v) %s", c.found, err, diff)
		}
	}
}

func TestSelftestFindsOutAtOnceThatItsReportCannotBeWritten(t *testing.T) {
	o, _ := testOptions(t)
	o.Report = "/proc/nowhere/r.json"
	if err := Selftest(t.Context(), o); err == nil || !strings.HasPrefix(err.Error(), "--report: ") {
		t.Errorf("error %v", err)
	}
}
