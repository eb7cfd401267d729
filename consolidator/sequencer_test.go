package consolidator

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// tape is a batchTarget that writes down what it is told. Payloads are text; one
// that begins with "bad" cannot be read.
type tape struct{ out strings.Builder }

func (t *tape) readable(payload []byte) bool { return !strings.HasPrefix(string(payload), "bad") }

func (t *tape) apply(payload []byte) bool {
	if !t.readable(payload) {
		t.out.WriteString("unreadable\n")
		return false
	}
	fmt.Fprintf(&t.out, "apply %s\n", payload)
	return true
}

func (t *tape) restarted() { t.out.WriteString("RESTARTED\n") }
func (t *tape) lost()      { t.out.WriteString("LOST\n") }

func (t *tape) take() string {
	defer t.out.Reset()
	return t.out.String()
}

// TestSequencerScripts: frames and replays in, decisions out. Input lines are
//
//	live SEQ[=PAYLOAD] ...     frames on the live socket
//	replay SEQ[=PAYLOAD] ...   batches of the replay under way
//	end                        its end mark
//	fail                       its failure
//	wait DURATION              the clock moves on, in steps of what is due
//	noreplay                   first line: there is no replay endpoint
//
// The payload is "e1-SEQ" unless given; "SEQ=e2" stands for "e2-SEQ".
func TestSequencerScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/sequence", func(t *testing.T, path string) {
		w := newSequencerScript(true)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			for line := range strings.Lines(d.Input) {
				w.line(t, strings.Fields(line))
			}
			return w.report(d.Cmd)
		})
	})
}

type sequencerScript struct {
	tape  tape
	count *counters
	now   time.Time
	seq   *sequencer
}

func newSequencerScript(replay bool) *sequencerScript {
	w := &sequencerScript{count: new(counters), now: time.Unix(1000, 0)}
	cfg := sequencerConfig{
		replay: replay, idle: 200 * time.Millisecond, timeout: 2 * time.Second, attempts: 3,
		heldFrames: 4, heldBytes: 1 << 20,
	}
	w.seq = newSequencer(cfg, &w.tape, w.count, w.now)
	return w
}

func (w *sequencerScript) line(t *testing.T, fields []string) {
	if len(fields) == 0 {
		return
	}
	switch fields[0] {
	case "noreplay":
		*w = *newSequencerScript(false)
		w.seq.out = &w.tape
	case "live", "replay":
		for _, f := range fields[1:] {
			n, payload := scriptFrame(t, f)
			if fields[0] == "live" {
				w.seq.live(w.now, n, payload)
			} else {
				w.seq.replayed(w.now, n, payload)
			}
			w.ask()
		}
	case "end":
		w.seq.replayEnd(w.now)
	case "fail":
		w.seq.replayFailed(w.now)
	case "wait":
		d, err := time.ParseDuration(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		w.wait(w.now.Add(d))
	default:
		t.Fatalf("line %v", fields)
	}
	w.ask()
}

func (w *sequencerScript) wait(until time.Time) {
	for {
		next := w.seq.wake()
		if next.IsZero() || next.After(until) {
			break
		}
		w.now = next
		w.seq.tick(w.now)
		w.ask()
	}
	w.now = until
}

func (w *sequencerScript) ask() {
	if start, due := w.seq.request(w.now); due {
		fmt.Fprintf(&w.tape.out, "ask %d\n", start)
	}
}

func (w *sequencerScript) report(cmd string) string {
	out := w.tape.take()
	if cmd != "counts" {
		return out
	}
	c := w.count
	return out + fmt.Sprintf("gaps=%d repaired=%d lost=%d replayed=%d failures=%d duplicates=%d restarts=%d overflows=%d\n",
		c.gaps.Load(), c.repaired.Load(), c.lost.Load(), c.replayed.Load(), c.replayFailures.Load(),
		c.duplicates.Load(), c.restarts.Load(), c.overflows.Load())
}

func scriptFrame(t *testing.T, f string) (uint64, []byte) {
	num, payload, given := strings.Cut(f, "=")
	n, err := strconv.ParseUint(num, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if !given {
		payload = "e1"
	}
	return n, []byte(payload + "-" + num)
}

// TestSequencerRepairsWhatTheHistoryHolds: whatever live frames are dropped,
// with a history that reaches back far enough every batch is applied once and in
// order, nothing is lost, and every gap counted is repaired.
func TestSequencerRepairsWhatTheHistoryHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newSequencerScript(true)
		total := rapid.IntRange(1, 60).Draw(rt, "batches")
		published := 0
		serve := func() {
			for w.seq.phase == asking {
				start := w.seq.next
				if !w.seq.verified {
					start--
				}
				until := published
				if rapid.IntRange(0, 3).Draw(rt, "cut") == 0 {
					until = min(published, int(start)+2)
				}
				for n := int(start); n < until && w.seq.phase == asking; n++ {
					w.seq.replayed(w.now, uint64(n), fmt.Appendf(nil, "e1-%d", n))
				}
				if until == published {
					w.seq.replayEnd(w.now)
				} else {
					w.wait(w.now.Add(2 * time.Second))
				}
				w.ask()
			}
		}
		for published < total {
			n := published
			published++
			if rapid.IntRange(0, 2).Draw(rt, "drop") > 0 {
				w.seq.live(w.now, uint64(n), fmt.Appendf(nil, "e1-%d", n))
				w.ask()
			}
			if rapid.IntRange(0, 4).Draw(rt, "serve") == 0 {
				serve()
			}
		}
		for range 20 {
			serve()
			w.wait(w.now.Add(time.Second))
		}
		var want strings.Builder
		for n := range total {
			fmt.Fprintf(&want, "apply e1-%d\n", n)
		}
		var got strings.Builder
		for line := range strings.Lines(w.tape.take()) {
			if !strings.HasPrefix(line, "ask") {
				got.WriteString(line)
			}
		}
		if got.String() != want.String() {
			rt.Fatalf("applied\n%swant\n%s", got.String(), want.String())
		}
		c := w.count
		if c.lost.Load() != 0 || c.restarts.Load() != 0 || c.gaps.Load() != c.repaired.Load() {
			rt.Fatalf("gaps %d, repaired %d, lost %d, restarts %d", c.gaps.Load(), c.repaired.Load(), c.lost.Load(), c.restarts.Load())
		}
	})
}
