package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/resource"
)

// skipWithoutDisk skips a test whose temporary directory is not on a disk.
func skipWithoutDisk(t *testing.T, dir string) {
	t.Helper()
	space, err := resource.SpaceOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	if space.InMemory {
		t.Skipf("%s is in memory (%s): there is no disk to measure", space.Mount, space.Kind)
	}
	j := job{path: dir + "/probe", block: 4096, count: depth}
	if err := makeFile(t.Context(), j); err != nil {
		t.Skipf("no O_DIRECT here: %v", err)
	}
	if err := os.Remove(j.path); err != nil {
		t.Fatal(err)
	}
}

func mustBeEmpty(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range left {
			t.Errorf("%s is left in %s", e.Name(), dir)
		}
	}
}

func TestRunMeasuresEverythingAndLeavesNothing(t *testing.T) {
	o := testOptions(t)
	skipWithoutDisk(t, o.Dir)
	var out bytes.Buffer
	o.Out = io.MultiWriter(&out, t.Output())
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Lines())
	mustBeEmpty(t, o.Dir, o.HostDir)
	if r.Ceiling != "raw" || len(r.Comparisons) != 5*len(o.Sizes) {
		t.Errorf("%d comparisons with %q, want %d with raw", len(r.Comparisons), r.Ceiling, 5*len(o.Sizes))
	}
	for _, c := range r.Comparisons {
		if c.Ratio.N < minRounds || c.Ratio.Median <= 0 || c.Bytes != uint64(c.Ratio.N)*o.RoundBytes || uint64(c.Ops)*c.BlockBytes != c.Bytes {
			t.Errorf("%s of %d bytes: %+v", c.What, c.BlockBytes, c)
		}
	}
	if r.Lookups.N < minLookups || r.Lookups.P50 <= 0 || r.Pauses.Cycles < minCycles || r.Pauses.Lookups.N == 0 || r.Open.N != openings {
		t.Errorf("look-ups %+v, pauses %+v, openings %+v", r.Lookups, r.Pauses, r.Open)
	}
	if rows := strings.Count(out.String(), "\ndisk read "); rows != len(o.Sizes)+1 {
		t.Errorf("the tables have %d rows of disk reads, want one for each size and the summary", rows)
	}
}

// cancelAt ends a context as soon as a text is written.
type cancelAt struct {
	text   string
	cancel context.CancelFunc
}

func (c *cancelAt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.text) {
		c.cancel()
	}
	return len(p), nil
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	for _, text := range []string{"directory ", writeName + " ", copyName + " ", "least median"} {
		o := testOptions(t)
		skipWithoutDisk(t, o.Dir)
		ctx, cancel := context.WithCancel(t.Context())
		o.Out = &cancelAt{text, cancel}
		if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted at %q: %v", text, err)
		}
		mustBeEmpty(t, o.Dir, o.HostDir)
		cancel()
	}
}

func TestLackOfRoomIsRefusedWithWhatToChange(t *testing.T) {
	space := resource.Space{Mount: "/mnt", Kind: "ext4", Free: 10, Total: 100}
	err := checkFree("disk directory", space, "--dir", 11)
	want := "disk directory: /mnt (ext4) has 10 bytes free, the run needs 11: choose another with --dir, or lower --round-size or --blocks"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if err := checkFree("disk directory", space, "--dir", 10); err != nil {
		t.Error(err)
	}
	limits := resource.Limits{MemAvailable: 100, Groups: []resource.Group{{Path: "/group", Limit: 60, Used: 10}}}
	if err := checkMemory(&limits, 51); err == nil || !strings.Contains(err.Error(), "/group has 50 bytes left") {
		t.Errorf("error %v, want the group", err)
	}
	if err := checkMemory(&limits, 50); err != nil {
		t.Error(err)
	}
}

func TestDirectoryInMemoryIsNotMeasuredAsADisk(t *testing.T) {
	o := testOptions(t)
	o.Dir = "/dev/shm"
	if space, err := resource.SpaceOf(o.Dir); err != nil || !space.InMemory {
		t.Skipf("%s is not in memory here", o.Dir)
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--dir") {
		t.Errorf("error %v, want one that names --dir", err)
	}
}

func TestLinesRoundSoThatNoTargetIsMetByIt(t *testing.T) {
	r := Result{
		Ceiling: "fio", Blocks: 5_000_000, Open: Summary{Median: 1.0001},
		Comparisons: []Comparison{
			{What: readName, Ratio: Summary{Median: 1.2}}, {What: readName, Ratio: Summary{Median: 0.9499}},
			{What: writeName, Ratio: Summary{Median: 0.959}}, {What: copyName, Ratio: Summary{Median: 0.9}},
		},
		Lookups: Lookups{P50: 99.2}, Pauses: Pauses{P99: 1.9991},
	}
	want := "bench-disk: open_s_per_10M=2.01\n" +
		"bench-disk: read=0.94 write=0.95 copy=0.90 lookup_us=100 gc_p99_ms=2.000 ceiling=fio\n"
	if got := r.Lines(); got != want {
		t.Errorf("lines\n%swant\n%s", got, want)
	}
	if got, want := r.Geometric(readName), math.Sqrt(1.2*0.9499); math.Abs(got-want) > 1e-9 {
		t.Errorf("geometric mean %g, want %g", got, want)
	}
	last := strings.Split(strings.TrimSpace(r.Lines()), "\n")[1]
	if !regexp.MustCompile(`^bench-disk: read=\d\.\d\d write=\d\.\d\d copy=\d\.\d\d lookup_us=\d+ gc_p99_ms=\d+\.\d+ ceiling=(fio|raw)$`).MatchString(last) {
		t.Errorf("last line %q", last)
	}
}
