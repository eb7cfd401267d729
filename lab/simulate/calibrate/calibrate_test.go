package calibrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// truth is what a step of the tests' engine takes: not linear in its tokens.
func truth(s *Step) float64 {
	tokens := float64(s.Prompt + s.Decodes)
	return 3 + 0.15*tokens/(1+tokens/600) + s.Pairs/20_000 + s.Context/3000
}

// record returns the lines of a recording of n steps with noise, a few of which take ten times as long.
func record(n int, rng *rand.Rand) []byte {
	var b bytes.Buffer
	at := 1000.0
	line := func(kind string, v any) {
		text, _ := json.Marshal(map[string]any{kind: v})
		b.Write(append(text, '\n'))
	}
	for i := range n {
		s := Step{Start: at, Decodes: rng.IntN(17)}
		s.Context = float64(s.Decodes) * (50 + 400*rng.Float64())
		if rng.IntN(3) == 0 || s.Decodes == 0 {
			s.Prompt = 1 + rng.IntN(256-s.Decodes)
			s.Pairs = float64(s.Prompt) * (float64(s.Prompt)/2 + float64(rng.IntN(300)))
		}
		took := truth(&s) * math.Exp(0.05*rng.NormFloat64())
		if rng.IntN(200) == 0 {
			took *= 10
		}
		s.End = at + 0.9*took/1e3 // the rest passes before the next step
		s.More = i%10 != 9
		at += took / 1e3
		if !s.More {
			s.End, at = at, at+5
		}
		line("step", s)
	}
	line("request", Arrival{ID: "a", Added: 1000.002, First: 1000.010})
	line("request", Arrival{ID: "b", First: 1000.020})
	return b.Bytes()
}

var all = []span{{0, math.Inf(1)}}

// answers are those of the requests of record: 2 ms to the engine, 1 and 3 ms back.
var answers = []Answer{{ID: "a", Sent: 1000, First: 1000.011}, {ID: "b", Sent: 1000.005, First: 1000.023}, {ID: "unknown"}}

// TestFitFindsWhatStepsTake: the table has the times of the engine without noise, and its ratios the noise, so
// that steps drawn from both take as long as the recorded ones.
func TestFitFindsWhatStepsTake(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	recording, err := Read(bytes.NewReader(record(6000, rng)))
	if err != nil {
		t.Fatal(err)
	}
	var r engine.Recording
	if _, err := recording.Fit(&r, all, answers); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	table, err := engine.ReadSteps(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	want, got, worst := 0.0, 0.0, 0.0
	var off []float64
	for _, s := range recording.samples(all) {
		want += s.ms
		for range 5 {
			ms, ok := table.Draw(rng, s.tokens, s.pairs, s.context)
			if !ok {
				t.Fatal("no ratios")
			}
			got += ms / 5
		}
	}
	for i := range recording.Steps {
		s := &recording.Steps[i]
		off = append(off, math.Abs(table.Milliseconds(float64(s.Prompt+s.Decodes), s.Pairs, s.Context)/truth(s)-1))
		worst = max(worst, off[i])
	}
	slices.Sort(off)
	if median := off[len(off)/2]; median > 0.02 || worst > 0.2 || math.Abs(got/want-1) > 0.03 {
		t.Errorf("steps are %.3f off in the median, %.3f at most, and drawn ones take %.3f of the recorded ones", median, worst, got/want)
	}
	if !slices.Equal(r.OutsideMS, []float64{3, 5}) {
		t.Errorf("%v ms outside of the engine, want 3 and 5", r.OutsideMS)
	}
}

// TestFitNeedsALoad: steps outside of the loads do not count, and neither a table nor times outside of the
// engine are invented.
func TestFitNeedsALoad(t *testing.T) {
	recording, err := Read(bytes.NewReader(record(500, rand.New(rand.NewPCG(1, 2)))))
	if err != nil {
		t.Fatal(err)
	}
	var r engine.Recording
	if _, err := recording.Fit(&r, []span{{0, 900}}, answers); err == nil || !strings.Contains(err.Error(), "0 steps") {
		t.Error(err)
	}
	if _, err := recording.Fit(&r, all, answers[1:]); err == nil || !strings.Contains(err.Error(), "idle engine") {
		t.Error(err)
	}
}

// TestReadNamesTheLine that is none, and leaves out one that is being written.
func TestReadNamesTheLine(t *testing.T) {
	good := `{"step": {"start": 1, "end": 2, "prompt": 3, "decodes": 0, "pairs": 4.5, "context": 0, "more": false}}` + "\n"
	for bad, want := range map[string]string{
		"nonsense\n":          "line 2",
		"{}\n":                "neither step nor request",
		`{"step": {}}` + "\n": "want an end after the start",
		`{"step": {"start": 1, "end": 2}}` + "\n": "at least one token",
		strings.Repeat("x", maxLine) + "\n":       "line 2",
	} {
		if _, err := Read(strings.NewReader(good + bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q in it", bad, err, want)
		}
	}
	r, err := Read(strings.NewReader(good + `{"step": {"sta`))
	if err != nil || len(r.Steps) != 1 || r.Steps[0].Prompt != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

// engineStub answers a request with as many tokens as it asks for, two in its first event.
func engineStub(t *testing.T, lose int) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt []int  `json:"prompt"`
			Tokens int    `json:"max_tokens"`
			ID     string `json:"request_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.ID == "" {
			t.Errorf("body: %v", err)
		}
		for _, token := range body.Prompt {
			if token < firstToken || token > lastToken {
				t.Errorf("token %d", token)
			}
		}
		left := body.Tokens - lose
		for n := 2; left > 0; n = 1 {
			n = min(n, left)
			left -= n
			fmt.Fprintf(w, "data: {\"choices\": [{\"token_ids\": %s}]}\n\n", strings.Replace(fmt.Sprint(slices.Repeat([]int{7}, n)), " ", ",", -1))
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s
}

// TestPlayTimesEveryToken, and an answer with too few tokens ends the load.
func TestPlayTimesEveryToken(t *testing.T) {
	l, err := newLoad("test", 1, 200, 100*time.Millisecond)
	if err != nil || len(l.requests) != 20 {
		t.Fatal(len(l.requests), err)
	}
	got, during, err := play(t.Context(), engineStub(t, 0).URL, l)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range got {
		if r := &l.requests[i]; a.ID != r.ID || len(a.Gaps) != r.OutputTokens-1 || a.Gaps[0] != 0 || a.Sent < during.from || a.First < a.Sent || a.First > during.to {
			t.Errorf("request %s: %+v within %+v", r.ID, a, during)
		}
	}
	if _, _, err := play(t.Context(), engineStub(t, 1).URL, l); err == nil || !strings.Contains(err.Error(), "tokens, want") {
		t.Error(err)
	}
	for bad, want := range map[string]string{"": "no token", "data: {\"error\": {\"message\": \"broken\"}}\n": "broken", "data: x\n": "event"} {
		if err := new(Answer).follow(strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", bad, err, want)
		}
	}
}

// TestSessionFitsWhatItRecorded: the held-out load is no part of the table, and the table's file is one that the
// simulator reads and serves loads with.
func TestSessionFitsWhatItRecorded(t *testing.T) {
	dir := t.TempDir()
	steps := filepath.Join(dir, "steps.jsonl")
	if err := os.WriteFile(steps, record(1000, rand.New(rand.NewPCG(1, 3))), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "engine.json")
	s := &session{o: &Options{Rate: 100, Table: path}, server: &server{URL: engineStub(t, 0).URL, Steps: steps,
		Recording: engine.Recording{About: "test", BlockSize: 32, Blocks: 500, Budget: 256, MaxRunning: 16}}}
	held, err := s.playAll(t.Context(), 600*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.spans) != 6 || len(s.answers) != 2*(10+16+26) || len(s.loads) != 6 || len(held.requests) != 60 || len(held.answers) != 60 {
		t.Errorf("%d spans, %d answers, %d loads recorded; %d requests and %d answers held out",
			len(s.spans), len(s.answers), len(s.loads), len(held.requests), len(held.answers))
	}
	for i := range held.answers {
		if held.answers[i].ID != held.requests[i].ID || !strings.HasPrefix(held.answers[i].ID, "held-out-") {
			t.Errorf("answer %s to request %s", held.answers[i].ID, held.requests[i].ID)
		}
		if i > 0 && i%10 == 0 && held.requests[i].At < held.requests[i-1].At+answerTime {
			t.Errorf("part %d begins at %v, before the one before it has ended", i/10, held.requests[i].At)
		}
	}
	sessions := map[int]bool{}
	for i := range held.requests {
		sessions[held.requests[i].Session] = true
	}
	if len(sessions) != 60 {
		t.Errorf("%d sessions, want 60: a prompt that continues one of another part is longer than the one that was played", len(sessions))
	}
	for _, a := range s.answers {
		if !strings.HasPrefix(a.ID, "recorded-") {
			t.Errorf("request %s is in the table", a.ID)
		}
	}
	s.spans, s.answers = all, answers
	if _, n, err := s.fit(); err != nil || n != 1000 {
		t.Fatal(n, err)
	}
	table, err := simulate.ReadEngine(path)
	if err != nil || table.Budget != 256 || table.About != "test" {
		t.Fatal(err)
	}
	requests := []workload.Request{{ID: "a", Pieces: []workload.Piece{{Stream: 1, Tokens: 300}}, OutputTokens: 10}}
	r, err := simulate.Serve(table, requests, 3)
	if err != nil || r.Requests != 3 || r.TTFTMean < 10 || r.TBTMean < 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestReport: the last line has ratios, and each figure beyond the tolerance is named.
func TestReport(t *testing.T) {
	a := []Answer{{Sent: 1, First: 1.010, Gaps: []float64{4, 6}}, {Sent: 2, First: 2.030, Gaps: []float64{5}}}
	c := Comparison{Simulated: Figures{21, 27, 5.5, 7.5}, Real: measured(a)}
	if got, want := c.String(), "calibrate: ttft_mean=1.050 ttft_p99=0.900 itl_mean=1.100 itl_p99=1.250"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := c.Check(); err == nil || err.Error() != "calibrate itl_p99: 1.250 is not in 0.85..1.15" {
		t.Error(err)
	}
	c.Simulated.ITLP99 = 6
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	if err := (&Comparison{Simulated: c.Simulated}).Check(); err == nil {
		t.Error("nothing was measured, and that is near")
	}
}

// TestOptions out of range are named.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{"python": {Rate: 1, Seconds: 9}, "rate": {Python: "p", Seconds: 9}, "seconds": {Python: "p", Rate: 1, Seconds: 1}} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
