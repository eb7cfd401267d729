package top

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gdamore/tcell/v2"
	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/lab/golden"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded serves what a router and an agent with two engines said under load: before at the first
// look of each path, and two seconds later afterwards.
func recorded(t *testing.T) string {
	t.Helper()
	var asked sync.Map
	var address string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := map[string]string{"/v1/feeds": "feeds.json", "/v1/workers": "workers.json", "/v1/agents": "agents.json", "/metrics": "metrics.txt", "/v1/stats": "stats.json"}[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		dir := "before"
		if _, again := asked.LoadOrStore(name, true); again {
			dir = "now"
		}
		body, err := os.ReadFile(filepath.Join("testdata", dir, name))
		if err != nil {
			t.Error(err)
		}
		if name == "agents.json" { // the recorded agent is this server
			body = bytes.ReplaceAll(body, []byte("http://127.0.0.1:19400"), []byte(address))
		}
		_, _ = w.Write(body)
	}))
	address = s.URL
	t.Cleanup(s.Close)
	return s.URL
}

// samples returns two looks at the recorded servers, two seconds apart at a fixed time.
func samples(t *testing.T) (before, now *sample) {
	t.Helper()
	c := Command{Router: recorded(t)}
	before, now = c.look(t.Context()), c.look(t.Context())
	if len(now.problems) > 0 || len(now.agents) != 1 {
		t.Fatalf("problems %v, %d agents", now.problems, len(now.agents))
	}
	before.at = time.Unix(1_800_000_000, 0)
	now.at = before.at.Add(2 * time.Second)
	now.router.URL = "http://127.0.0.1:8090"
	return before, now
}

// text returns the lines of a screen.
func text(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimRight(l.text, " ") + "\n")
	}
	return b.String()
}

// TestScreens: each view of recorded servers is as before, and no line is wider than the screen.
func TestScreens(t *testing.T) {
	before, now := samples(t)
	first := *now
	first.problems = []string{"agent: connection \x1b[2Jrefused"}
	for name, got := range map[string][]line{
		"all-80": render(viewAll, before, now, 80), "all-120": render(viewAll, before, now, 120), "tiers": render(viewTiers, before, now, 80),
		"workers": render(viewWorkers, before, now, 80), "queues": render(viewQueues, before, now, 80), "events": render(viewEvents, before, now, 80),
		"first-look": render(viewAll, nil, &first, 80),
	} {
		for _, l := range got {
			if n := utf8.RuneCountInString(l.text); n > 80 && name != "all-120" || n > 120 {
				t.Errorf("%s: a line of %d characters: %s", name, n, l.text)
			}
		}
		golden.Compare(t, name+".txt", text(got))
	}
}

// TestWrongStatesAreShown: lag, a differing digest, a silent worker, misses by cause, and a server that has
// restarted, whose counters are no rate.
func TestWrongStatesAreShown(t *testing.T) {
	before, now := samples(t)
	now.router.Feeds[1].Announced, now.router.Feeds[1].Health, now.router.Feeds[2].DigestOK = now.router.Feeds[1].Cursor+1234, "degraded", false
	now.router.Workers[0].Silent = true
	now.router.Metrics["blockyard_frontend_cached_tokens_difference_total"] = map[string]float64{
		`cause="evicted",direction="less",model="m",worker="7"`: 400, `cause="sent_elsewhere",direction="less",model="m",worker="7"`: 200,
		`cause="unknown",direction="more",model="m",worker="7"`: 900,
	}
	now.agents[0].Pools[0].HostHits = 1
	got := text(render(viewAll, before, now, 80))
	for _, want := range []string{"OWNER 1/3 exact", " degraded       1234 ", " differs\n", " silent ", "misses    evicted 200  sent_elsewhere 100 tokens/s by cause\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the screen lacks %q:\n%s", want, got)
		}
	}
	tiers := text(render(viewTiers, before, now, 80))
	for line := range strings.Lines(tiers) {
		if strings.Contains(line, " host ") && strings.Fields(line)[len(strings.Fields(line))-2] != "-" {
			t.Errorf("a restarted agent has a rate: %s", line)
		}
	}
}

// TestOnce: the command prints one screen of 80 columns to an output that is no terminal, names the
// server that does not answer, and fails without any.
func TestOnce(t *testing.T) {
	var out bytes.Buffer
	c := Command{Router: recorded(t), Agents: []string{"127.0.0.1:1"}, Every: minEvery}
	if err := c.Run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "WORKER") || !strings.Contains(out.String(), "no answer: agent: ") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	c = Command{Router: "127.0.0.1:1", Every: minEvery, Once: true}
	if err := c.Run(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("without servers: %v", err)
	}
	for want, bad := range map[string]Command{
		"--every 1ms: want at least 100ms": {Router: "a:1", Every: time.Millisecond},
		"nothing to show":                  {Every: time.Second},
		`url "ftp://a"`:                    {Router: "ftp://a", Every: time.Second},
		"65 agents, want at most 64":       {Agents: make([]string, 65), Every: time.Second},
	} {
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// watched is a simulated screen that tells of each drawing.
type watched struct {
	tcell.SimulationScreen
	drawn chan string
	done  <-chan struct{}
	finis atomic.Int32
}

// Show implements tcell.Screen.
func (w *watched) Show() {
	w.SimulationScreen.Show()
	cells, width, height := w.GetContents()
	var b strings.Builder
	for i, cell := range cells[:width*height] {
		if len(cell.Runes) > 0 {
			b.WriteRune(cell.Runes[0])
		}
		if i%width == width-1 {
			b.WriteByte('\n')
		}
	}
	select {
	case w.drawn <- b.String():
	case <-w.done:
	}
}

// Fini implements tcell.Screen.
func (w *watched) Fini() {
	w.finis.Add(1)
	w.SimulationScreen.Fini()
}

// TestKeys: tab and the arrows change the view of a simulated terminal, up and down scroll, and q ends the
// command and restores the terminal.
func TestKeys(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	screen := &watched{SimulationScreen: tcell.NewSimulationScreen("UTF-8"), drawn: make(chan string), done: ctx.Done()}
	c := Command{Router: recorded(t), Every: time.Hour}
	ended := make(chan error, 1)
	go func() { ended <- c.show(ctx, screen) }()
	until := func(what string, holds func(string) bool) {
		t.Helper()
		for last := ""; ; {
			select {
			case last = <-screen.drawn:
				if holds(last) {
					return
				}
			case err := <-ended:
				t.Fatalf("ended before %s: %v", what, err)
			case <-ctx.Done():
				t.Fatalf("never %s:\n%s", what, last)
			}
		}
	}
	shows := func(parts ...string) func(string) bool {
		return func(s string) bool {
			for _, part := range parts {
				if !strings.Contains(s, part) {
					return false
				}
			}
			return true
		}
	}
	until("the first look", shows("[all]", "NODE ", "WORKER ", "q: end"))
	for _, step := range []struct {
		key  tcell.Key
		want []string
	}{
		{tcell.KeyTab, []string{"[tiers]", "EVICT/S"}}, {tcell.KeyRight, []string{"[workers]", "DEVICE"}}, {tcell.KeyTab, []string{"[queues]", "SEAL"}},
		{tcell.KeyTab, []string{"[events]", "DIGEST"}}, {tcell.KeyTab, []string{"[all]"}}, {tcell.KeyLeft, []string{"[events]"}}, {tcell.KeyBacktab, []string{"[queues]"}},
	} {
		screen.InjectKey(step.key, 0, tcell.ModNone)
		until(step.want[0], shows(step.want...))
	}
	screen.SetSize(80, 4)
	if err := screen.PostEvent(tcell.NewEventResize(80, 4)); err != nil {
		t.Fatal(err)
	}
	until("the small screen", func(s string) bool { return strings.Count(s, "\n") == 4 })
	screen.InjectKey(tcell.KeyDown, 0, tcell.ModNone)
	until("scrolled", func(s string) bool { return !strings.Contains(s, "[queues]") && strings.HasPrefix(s, "routing") })
	screen.InjectKey(tcell.KeyUp, 0, tcell.ModNone)
	until("scrolled back", shows("[queues]"))
	screen.InjectKey(tcell.KeyRune, 'x', tcell.ModNone)
	until("another key", shows("[queues]"))
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	if err := <-ended; err != nil || screen.finis.Load() != 1 {
		t.Errorf("%v; the terminal was restored %d times", err, screen.finis.Load())
	}
}
