package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// GET /v1/decisions has booked requests, newest first, with the chosen worker. Once somebody has
// looked it has the other workers too. Dry runs and explanations are no decisions.
func TestDecisions(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		prompt := routertest.TokensJSON(sourcetest.Tokens(1, 5, 6))
		look := func(query string) (all []decisionAnswer) {
			b.T.Helper()
			r := routertest.Call(b.T, h, "GET", "/v1/decisions"+query, "", "")
			if err := json.Unmarshal([]byte(routertest.Text(b.T, r)), &all); err != nil || r.StatusCode != http.StatusOK {
				b.T.Fatalf("status %d, %v", r.StatusCode, err)
			}
			return all
		}
		b.Route(h, "r-1", `{"method":"new","tokens":`+prompt+`}`)
		b.Route(h, "r-2", `{"method":"explain","tokens":`+prompt+`}`)
		b.Route(h, "r-3", `{"method":"new","update_states":false,"tokens":`+prompt+`}`)
		b.Pass(2 * time.Second)
		all := look("")
		if len(all) != 1 {
			b.T.Fatalf("decisions %+v", all)
		}
		d := all[0]
		if d.RequestID != "r-1" || d.Model != "m" || d.AgeSeconds != 2 || d.Tokens != 12 || d.Quality != "exact" ||
			d.Explanation.Compared != 0 || len(d.Explanation.Workers) != 1 || d.Explanation.Score == "" {
			b.T.Errorf("the decision before the look: %+v", d)
		}
		_, text := b.Route(h, "r-4", `{"method":"new","tokens":`+prompt+`}`)
		if strings.Contains(text, "explanation") {
			b.T.Errorf("the caller did not ask for an explanation: %s", text)
		}
		if d = look("?limit=1")[0]; d.RequestID != "r-4" || d.Explanation.Compared != 2 || len(d.Explanation.Workers) != 2 ||
			d.Explanation.Workers[0].Cost > d.Explanation.Workers[1].Cost {
			b.T.Errorf("the decision after the look: %+v", d)
		}
		if r := routertest.Call(b.T, h, "GET", "/v1/decisions?limit=129", "", ""); r.StatusCode != http.StatusBadRequest || !strings.Contains(routertest.Text(b.T, r), "0..128") {
			b.T.Errorf("limit 129: status %d", r.StatusCode)
		}
	})
}

// GET /v1/history follows the router while it runs: counters rise with its decisions.
func TestHistoryOfRouter(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		b.Route(h, "r-1", `{"method":"new","tokens":`+routertest.TokensJSON(sourcetest.Tokens(1, 5))+`}`)
		b.Pass(6 * time.Second)
		var past struct {
			At     []int64
			Series map[string][]float64
		}
		if err := json.Unmarshal([]byte(routertest.Text(b.T, routertest.Call(b.T, h, "GET", "/v1/history", "", ""))), &past); err != nil {
			b.T.Fatal(err)
		}
		last := func(name string) float64 {
			v := past.Series[name]
			if len(v) == 0 || len(v) != len(past.At) {
				b.T.Fatalf("series %s has %d of %d values", name, len(v), len(past.At))
			}
			return v[len(v)-1]
		}
		for name, want := range map[string]float64{
			"decisions": 1, "prompt_tokens": 8, "active_requests": 1, "workers": 2, "event_lag": 0, "waiting_requests": 0,
			"hit_tokens_device": 4, "hit_tokens_disk": 0, "unvalued_tokens": 4, "saved_seconds": 0, "missed_tokens_evicted": 0, "feeds": 3, "feeds_exact": 3,
		} {
			if got := last(name); got != want {
				b.T.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

// POST /v1/tokens answers the tokens of a prompt, and says why there are none.
func TestTokens(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		tokenize := func(_ context.Context, body []byte) (Tokenized, error) {
			switch string(body) {
			case "bad":
				return Tokenized{}, errors.New("body: no JSON")
			case "unknown":
				return Tokenized{Reason: "no server"}, nil
			}
			return Tokenized{Model: "m", Tokens: []uint32{1, 2}, Reason: "a guess"}, nil
		}
		for _, c := range []struct {
			options Options
			body    string
			status  int
			want    string
		}{
			{Options{}, "x", http.StatusConflict, "no front door"},
			{Options{Tokenize: tokenize}, "bad", http.StatusBadRequest, "body: no JSON"},
			{Options{Tokenize: tokenize}, "unknown", http.StatusServiceUnavailable, "tokens: no server"},
			{Options{Tokenize: tokenize}, strings.Repeat(" ", maxTokenized+1), http.StatusRequestEntityTooLarge, "too large"},
			{Options{Tokenize: tokenize}, "text", http.StatusOK, `{"model":"m","tokens":[1,2],"exact":false,"reason":"a guess"}`},
		} {
			r := routertest.Call(b.T, New(b.Router, c.options).Handler(), "POST", "/v1/tokens", "", c.body)
			if text := routertest.Text(b.T, r); r.StatusCode != c.status || !strings.Contains(text, c.want) {
				b.T.Errorf("%.10q: status %d, %s; want %d, %s", c.body, r.StatusCode, text, c.status, c.want)
			}
		}
	})
}

// POST /v1/tokens takes one of the places of requests that are being routed. Neither a router
// without a place nor a caller who has gone is the request's mistake.
func TestTokensTakesAPlace(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		var places int
		var a *API
		a = New(b.Router, Options{Tokenize: func(ctx context.Context, _ []byte) (Tokenized, error) {
			places = len(a.service.routing)
			return Tokenized{Tokens: []uint32{1}}, context.Cause(ctx)
		}})
		call := func(ctx context.Context) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			a.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/tokens", strings.NewReader("x")))
			return w
		}
		if w := call(b.T.Context()); w.Code != http.StatusOK || places != 1 || len(a.service.routing) != 0 {
			t.Errorf("status %d; %d places taken, %d left taken; want 1 and 0", w.Code, places, len(a.service.routing))
		}
		gone, leave := context.WithCancel(b.T.Context())
		leave()
		if w := call(gone); w.Code != http.StatusServiceUnavailable {
			t.Errorf("a caller who has gone: %d %s", w.Code, w.Body)
		}
		a.service.routing = make(chan struct{})
		if w := call(b.T.Context()); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), errBusy.Error()) {
			t.Errorf("without a place: %d %s", w.Code, w.Body)
		}
	})
}
