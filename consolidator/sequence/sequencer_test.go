package sequence

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// tape is a Target that writes down what it is told. Payloads are text; one
// that begins with "bad" cannot be read.
type tape struct{ out strings.Builder }

func (t *tape) Readable(payload []byte) bool { return !strings.HasPrefix(string(payload), "bad") }

func (t *tape) Apply(payload []byte) bool {
	if !t.Readable(payload) {
		t.out.WriteString("unreadable\n")
		return false
	}
	fmt.Fprintf(&t.out, "apply %s\n", payload)
	return true
}

func (t *tape) Restarted() { t.out.WriteString("RESTARTED\n") }
func (t *tape) Lost()      { t.out.WriteString("LOST\n") }
func (t *tape) Continued() {}

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
//	memory APPLIED HELD        first line: batches remembered, frames held (64, 4)
//
// The payload is "e1-SEQ" unless given; "SEQ=e2" stands for "e2-SEQ".
func TestSequencerScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newSequencerScript(scriptConfig())
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
	count *Counters
	now   time.Time
	seq   *Sequencer
}

func scriptConfig() Config {
	return Config{
		Replay: true, Idle: 200 * time.Millisecond, Timeout: 2 * time.Second, Attempts: 3,
		HeldFrames: 4, HeldBytes: 1 << 20, Remembered: 64,
	}
}

func newSequencerScript(cfg Config) *sequencerScript {
	w := &sequencerScript{count: new(Counters), now: time.Unix(1000, 0)}
	w.seq = New(cfg, &w.tape, w.count, w.now)
	return w
}

func (w *sequencerScript) line(t *testing.T, fields []string) {
	if len(fields) == 0 {
		return
	}
	switch fields[0] {
	case "noreplay":
		cfg := scriptConfig()
		cfg.Replay = false
		w.begin(cfg)
	case "memory":
		cfg := scriptConfig()
		if _, err := fmt.Sscan(strings.Join(fields[1:], " "), &cfg.Remembered, &cfg.HeldFrames); err != nil {
			t.Fatal(err)
		}
		w.begin(cfg)
	case "live", "replay":
		for _, f := range fields[1:] {
			n, payload := scriptFrame(t, f)
			if fields[0] == "live" {
				w.seq.Live(w.now, n, payload)
			} else {
				w.seq.Replayed(w.now, n, payload)
			}
			w.ask()
		}
	case "end":
		w.seq.ReplayEnd(w.now)
	case "fail":
		w.seq.ReplayFailed(w.now)
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

func (w *sequencerScript) begin(cfg Config) {
	*w = *newSequencerScript(cfg)
	w.seq.target = &w.tape
}

func (w *sequencerScript) wait(until time.Time) {
	for {
		next := w.seq.Wake()
		if next.IsZero() || next.After(until) {
			break
		}
		w.now = next
		w.seq.Tick(w.now)
		w.ask()
	}
	w.now = until
}

func (w *sequencerScript) ask() {
	if start, due := w.seq.Request(w.now); due {
		fmt.Fprintf(&w.tape.out, "ask %d\n", start)
	}
}

func (w *sequencerScript) report(cmd string) string {
	out := w.tape.take()
	if cmd != "counts" {
		return out
	}
	c := w.count
	return out + fmt.Sprintf("gaps=%d repaired=%d lost=%d replayed=%d failures=%d duplicates=%d outdated=%d restarts=%d overflows=%d\n",
		c.Gaps.Load(), c.Repaired.Load(), c.Lost.Load(), c.Replayed.Load(), c.ReplayFailures.Load(),
		c.Duplicates.Load(), c.Outdated.Load(), c.Restarts.Load(), c.Overflows.Load())
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

// TestSequencerRepairsWhatTheHistoryHolds: whatever live frames are dropped or
// wait, and however few are remembered, with a history that reaches back far
// enough every batch that can be read is applied once and in order, and nothing
// is taken for another engine's. Without unreadable batches nothing is lost, and
// every gap counted is repaired.
func TestSequencerRepairsWhatTheHistoryHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := scriptConfig()
		cfg.Remembered = rapid.IntRange(1, 64).Draw(rt, "remembered")
		cfg.HeldFrames = rapid.IntRange(1, 64).Draw(rt, "held")
		e := modelEngine{rt: rt, w: newSequencerScript(cfg)}
		bad := rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(rt, "percent unreadable")
		for range rapid.IntRange(1, 60).Draw(rt, "batches") {
			e.publish(rapid.IntRange(0, 99).Draw(rt, "quality") < bad)
			if rapid.IntRange(0, 4).Draw(rt, "serve") == 0 {
				e.serve()
			}
		}
		for range 20 {
			e.serve()
			e.w.wait(e.w.now.Add(time.Second))
		}
		e.check()
	})
}

// modelEngine publishes to a script's sequencer and answers its replays.
type modelEngine struct {
	rt       *rapid.T
	w        *sequencerScript
	payloads [][]byte
	wanted   strings.Builder // the tape's lines of all readable batches
	bad      int
}

func (e *modelEngine) publish(bad bool) {
	n := len(e.payloads)
	payload := fmt.Appendf(nil, "e1-%d", n)
	if bad {
		payload = fmt.Appendf(nil, "bad-%d", n)
		e.bad++
	} else {
		fmt.Fprintf(&e.wanted, "apply %s\n", payload)
	}
	e.payloads = append(e.payloads, payload)
	if rapid.IntRange(0, 2).Draw(e.rt, "drop") > 0 {
		e.w.seq.Live(e.w.now, uint64(n), payload)
		e.w.ask()
	}
}

// serve answers replays until none is under way; some are cut off.
func (e *modelEngine) serve() {
	seq := e.w.seq
	for range 100 {
		if !seq.Replaying() {
			return
		}
		start := int(seq.next)
		if !seq.lastVerified {
			start--
		}
		until := len(e.payloads)
		if rapid.IntRange(0, 3).Draw(e.rt, "cut") == 0 {
			until = min(until, start+2)
		}
		for n := start; n < until && seq.Replaying(); n++ {
			seq.Replayed(e.w.now, uint64(n), e.payloads[n])
		}
		if until == len(e.payloads) {
			seq.ReplayEnd(e.w.now)
		} else {
			e.w.wait(e.w.now.Add(2 * time.Second))
		}
		e.w.ask()
	}
	e.rt.Fatal("100 replays in a row")
}

func (e *modelEngine) check() {
	var got strings.Builder
	for line := range strings.Lines(e.w.tape.take()) {
		if strings.HasPrefix(line, "apply") || line == "RESTARTED\n" || e.bad == 0 && line == "LOST\n" {
			got.WriteString(line)
		}
	}
	if got.String() != e.wanted.String() {
		e.rt.Fatalf("applied\n%swant\n%s", got.String(), e.wanted.String())
	}
	c := e.w.count
	if n := len(e.w.seq.held.frames); n > 0 || e.w.seq.gap {
		e.rt.Fatalf("%d frames are held, gap %t", n, e.w.seq.gap)
	}
	if c.Gaps.Load() != c.Repaired.Load()+c.Lost.Load() || c.Lost.Load() > uint64(e.bad) || c.Restarts.Load() > 0 {
		e.rt.Fatalf("gaps %d, repaired %d, lost %d, restarts %d; %d batches are unreadable",
			c.Gaps.Load(), c.Repaired.Load(), c.Lost.Load(), c.Restarts.Load(), e.bad)
	}
}
