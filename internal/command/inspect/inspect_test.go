package inspect

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// answers serves fixed bodies by path.
func answers(t *testing.T, bodies map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func inspect(t *testing.T, url string, asJSON bool) (string, error) {
	t.Helper()
	c := Command{URL: url, JSON: asJSON, Timeout: 30 * time.Second}
	if err := c.Validate(); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err := c.Run(t.Context(), &out)
	return out.String(), err
}

const inspectedAgent = `{"node":"n1","events":{"in":100,"out":90,"lost":0},
"streams":[
 {"owner":"worker 7/0","publisher_id":"0001b2c3d4e5f607","last_event_id":41,"digest":"00000000000000ff","blocks":12,"health":"degraded",
  "dropped":{"unknown_parent":3,"group":1},
  "rank":{"gaps":2,"repaired":1,"lost":1,"bad_events":5,"parked":4,"replays":0,"repairing":false,"last_bad":[{"reason":"medium"},{"reason":"hash"}]}},
 {"owner":"pool 9","publisher_id":"","last_event_id":1,"digest":"00","blocks":1,"health":"exact","dropped":{}}],
"totals":{"ranks":{"frames":7,"dropped":{"group":1}},"feeds":{"skipped":0}},
"outputs":{"http":{"clients":1},"zmq_failed":2,"capped":0,"loads_lost":0,"dynamo":{"sources":1,"rival_sources":3},
 "ranks":[{"owner":"worker 7/0","blocks":13,"zmq":{"said":11,"gaps":0}},{"owner":"worker 7/0","blocks":14,"dynamo":{"events":9,"degraded":true}}]}}`

// TestInspectShowsWhatIsWrongWithAnAgentsEvents: health, gaps, drops by reason, what
// is parked, the last bad events and the outputs for those who know workers only, also
// counters that this program does not know.
func TestInspectShowsWhatIsWrongWithAnAgentsEvents(t *testing.T) {
	url := answers(t, map[string]string{
		"/v1/stats": inspectedAgent,
		"/v1/events/feeds": `{"clients":1,"frames":5,"bytes":600,"dropped":2,"refused":0,"cut":0,
			"feeds":[{"publisher_id":"0001b2c3d4e5f607","owner":"worker 7/0","kept_from":3,"kept_to":41,"counters":{"events":41,"dumps":0}}]}`,
	})
	got, err := inspect(t, url, false)
	if err != nil {
		t.Fatal(err)
	}
	squeezed := strings.Join(strings.Fields(got), " ")
	for _, want := range []string{
		"agent of node n1 at " + url,
		"worker 7/0 0001b2c3d4e5f607 degraded 41 12 00000000000000ff 2 1 1 5 4",
		"pool 9 - exact 1 1 00 - - - - 0",
		"worker 7/0: dropped group 1, unknown_parent 3",
		`worker 7/0: last_bad {"reason":"medium"}`, `worker 7/0: last_bad {"reason":"hash"}`,
		"bad_events 5, gaps 2, lost 1, parked 4, repaired 1",
		"events: in 100, out 90", "ranks: frames 7",
		"outputs: zmq_failed 2 dynamo_plane: rival_sources 3, sources 1",
		"worker 7/0 zmq 13 said 11", "worker 7/0 dynamo 14 degraded 1, events 9",
		"over HTTP: 1 clients, 5 frames, 600 bytes, 2 dropped",
		"worker 7/0 0001b2c3d4e5f607 3..41 events 41",
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(squeezed, "replays") {
		t.Errorf("it shows what is 0:\n%s", got)
	}
}

func TestInspectShowsARoutersFeedsWorkersAndAgents(t *testing.T) {
	bodies := map[string]string{
		"/v1/feeds": `[{"publisher_id":"0001","owner":"worker 7/0","pool":9,"cursor":40,"announced":41,"health":"degraded","gaps":3,"repaired":2,"divergences":1,"divergences_repaired":1,"digest_ok":false}]`,
		"/v1/workers": `[{"worker_id":7,"dp_rank":1,"pool":9,"model":"m","block_size":16,"quality":"exact","source":"agent","load":{"age_seconds":0.25,"device_blocks_total":100,"device_blocks_used":60,"running_requests":3,"waiting_requests":2}},
			{"worker_id":8,"dp_rank":0,"model":"m","block_size":16,"quality":"exact","source":"file","silent":true,"endpoint":"http://e:1"}]`,
	}
	url := answers(t, bodies)
	got, err := inspect(t, url, false)
	if err != nil {
		t.Fatal(err)
	}
	squeezed := strings.Join(strings.Fields(got), " ")
	for _, want := range []string{
		"worker 7/0 0001 degraded 40 41 3 2 1 1 differs",
		"7/1 agent m 16 exact 9 yes - 60/100 3 2 0.2s",
		"8/0 file m 16 exact 0 no http://e:1 - - - -",
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	bodies["/v1/agents"] = `[{"url":"http://a:1","connected":false,"publishers":2,"dropped":1,"error":"refused"}]`
	bodies["/v1/sources"] = `[{"name":"dynamo","counters":{"gaps":3,"stale":0},"gauges":{"ranks":2}}]`
	if got, err = inspect(t, answers(t, bodies), false); err != nil || !strings.Contains(strings.Join(strings.Fields(got), " "), "http://a:1 false 2 1 refused") ||
		!strings.Contains(got, "  dynamo: ranks 2\n  dynamo: gaps 3\n") {
		t.Errorf("agents and sources: %v\n%s", err, got)
	}
	text, err := inspect(t, url, true)
	if err != nil {
		t.Fatal(err)
	}
	var whole map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &whole); err != nil || whole["feeds"] == nil || whole["workers"] == nil || whole["agents"] == nil {
		t.Errorf("--json: %v\n%s", err, text)
	}
}

// TestInspectEscapesWhatServersSay: a name from the network neither moves columns nor
// commands the terminal.
func TestInspectEscapesWhatServersSay(t *testing.T) {
	hostile := `"m\u001b[2J\n9/9\tx\u009b1m\u202e"`
	for _, bodies := range []map[string]string{
		{"/v1/feeds": `[{"owner":` + hostile + `}]`, "/v1/workers": `[{"worker_id":7,"model":` + hostile + `,"endpoint":` + hostile + `}]`,
			"/v1/agents": `[{"url":"http://a:1","error":` + hostile + `}]`},
		{"/v1/stats": `{"node":` + hostile + `,"streams":[{"owner":` + hostile + `,"dropped":{` + hostile + `:1}}]}`},
	} {
		got, err := inspect(t, answers(t, bodies), false)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(got, "\x1b\t\u009b\u202e") || strings.Contains(got, "\n9/9") {
			t.Errorf("it shows what is not text: %q", got)
		}
		if !strings.Contains(got, `m\x1b[2J\n9/9\tx\u009b1m\u202e`) {
			t.Errorf("it lacks the escaped name:\n%s", got)
		}
	}
}

func TestInspectErrorsSayWhatIsWrong(t *testing.T) {
	for want, url := range map[string]string{
		"neither an agent nor a router": answers(t, nil),
		"not JSON":                      answers(t, map[string]string{"/v1/stats": "<html>"}),
		"stats: ":                       answers(t, map[string]string{"/v1/stats": `{"node":7}`}),
		`url "ftp://a"`:                 "ftp://a",
		`url "http://"`:                 "http://",
		"refused":                       "127.0.0.1:1",
	} {
		if got, err := inspect(t, url, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s\n%s", url, err, want, got)
		}
	}
}
