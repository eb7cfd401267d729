package selection

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/zmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// following returns a Server whose router follows nobody but the workers that register.
func following(t *testing.T) *Server {
	source, err := zmq.New(zmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := routertest.RunRouter(t, router.Options{Config: routertest.Configured(func(c *config.Config) {
		c.RouterTrackOutputBlocks, c.FirstOfEqual = true, true
	})}, source)
	return New(Options{Router: r, Follower: source})
}

// TestAnswersAreThoseOfDynamo: the requests of a session with the service of Dynamo 1.6.1, with
// its recorded answers. Errors have another text, but the same status and members.
func TestAnswersAreThoseOfDynamo(t *testing.T) {
	text, err := os.ReadFile("testdata/dynamo-1.6.1.txt")
	if err != nil {
		t.Fatal(err)
	}
	h := following(t).Handler()
	requests := 0
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		request, recorded, _ := strings.Cut(block, "\n")
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		code, want, _ := strings.Cut(recorded, " ")
		status, err := strconv.Atoi(code)
		if err != nil {
			t.Fatalf("%s: the recorded status: %v", request, err)
		}
		r := routertest.Call(t, h, method, path, "", body)
		got := routertest.Text(t, r)
		if r.StatusCode != status {
			t.Errorf("%s: %d %s; want %s", request, r.StatusCode, got, recorded)
			continue
		}
		if diff := cmp.Diff(comparable(t, want), comparable(t, got)); diff != "" {
			t.Errorf("%s: %s", request, diff)
		}
		requests++
	}
	if requests < 80 {
		t.Errorf("%d requests are recorded", requests)
	}
}

// comparable returns what two answers must have in common.
func comparable(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return map[string]any{"error": ""} // Dynamo's error for a path has no JSON
	}
	return withoutTexts(v)
}

// withoutTexts empties the texts of errors in v.
func withoutTexts(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if _, text := member.(string); text && name == "error" {
				member = ""
			}
			v[name] = withoutTexts(member)
		}
	case []any:
		for i := range v {
			v[i] = withoutTexts(v[i])
		}
	case string:
		if strings.HasPrefix(v, "reconciliation failed: ") {
			return "reconciliation failed"
		}
	}
	return v
}

// call sends one request and checks the answer's status and text.
func call(t *testing.T, h http.Handler, method, path, body string, status int, want string) {
	t.Helper()
	r := routertest.Call(t, h, method, path, "", body)
	if got := routertest.Text(t, r); r.StatusCode != status || !strings.Contains(got, want) {
		t.Errorf("%s %s %.100s: %d %s; want %d %s", method, path, body, r.StatusCode, got, status, want)
	}
}

// TestWorkersOfAgentsAreChosen: a worker that an agent announces is listed, chosen by what its
// tiers hold, and its id cannot be registered.
func TestWorkersOfAgentsAreChosen(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b) // worker 2 has block 1; the pool of both has 1 and 2 in host memory
		h := New(Options{Router: b.Router, Endpoint: func(id kv.WorkerID) string { return "http://w" + strconv.FormatUint(uint64(id), 10) }}).Handler()
		const prompt = `"token_ids":[1,1,1,1,2,2,2,2,3]`
		tokens := prompt
		for _, c := range []struct {
			method, path, body string
			status             int
			want               string
		}{
			{"GET", "/ready", ``, 200, `"schedulable_workers":2`},
			{"GET", "/workers", ``, 200, `{"worker_id":2,"model_name":"m","routing_group":"default","lifecycle":"schedulable","endpoint":"http://w2"`},
			{"POST", "/workers", `{"worker_id":2,"model_name":"m","endpoint":"http://a","block_size":4}`, 201,
				`"not_schedulable_reasons":["reconciliation failed: worker 2 is a worker of the router already, from agent"]`},
			{"DELETE", "/workers/2", ``, 200, `"lifecycle":"unschedulable"`},
			{"GET", "/workers", ``, 200, `"worker_id":2`},
			{"POST", "/workers", `{"worker_id":9,"endpoint":"http://a","block_size":4}`, 201, `reconciliation failed: the router takes no registrations`},
			{"POST", "/select", `{"model_name":"m",` + tokens + `}`, 200, `"endpoint":"http://w`},
			// Without a name the router's only model counts.
			{"POST", "/select", `{` + tokens + `}`, 200, `"model_name":"m"`},
			{"POST", "/select", `{"model_name":"m","routing_group":"acme",` + tokens + `}`, 503, "no schedulable workers for model=m routing_group=acme"},
			{"POST", "/select_and_reserve", `{"model_name":"m",` + tokens + `}`, 200, `{"selection_id":"`},
			{"POST", "/select", `{"model_name":"m","selection_id":"` + strings.Repeat("x", maxSelectionID+1) + `",` + tokens + `}`, 400, "selection_id"},
			{"POST", "/select", `{"model_name":"m","block_hashes":[1,2,3,4],"sequence_hashes":[1,2,3,4],"isl_tokens":5}`, 400, "hashed prompt"},
			{"POST", "/select", `{"kv":` + strings.Repeat(" ", maxBody) + `1}`, 413, "8388608"},
		} {
			call(t, h, c.method, c.path, c.body, c.status, c.want)
		}
		cross := httptest.NewRequest("POST", "/workers", strings.NewReader(`{}`))
		cross.Header.Set("Sec-Fetch-Site", "cross-site")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, cross); w.Code != http.StatusForbidden {
			t.Errorf("another site's page: %d", w.Code)
		}
	})
}
