package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/miss"
)

// missesAnswer is the answer to GET /v1/misses.
type missesAnswer struct {
	// Explained is false when the router keeps nothing to explain misses with.
	Explained bool `json:"explained"`
	// Tokens are the missed tokens since the start, by cause.
	Tokens map[string]uint64 `json:"missed_tokens"`
	// Requests are the last requests, newest first.
	Requests []missedAnswer `json:"requests"`
}

// missedAnswer is one request whose answer reported cached tokens.
type missedAnswer struct {
	RequestID  string  `json:"request_id"`
	Model      string  `json:"model"`
	Worker     string  `json:"worker"`
	AgeSeconds float64 `json:"age_seconds"`
	Tokens     int     `json:"prompt_tokens"`
	Predicted  int     `json:"cached_predicted"`
	Delivered  int     `json:"cached_delivered"`
	// Difference is the cause of the difference between the two; absent without one.
	Difference string       `json:"difference,omitempty"`
	Misses     []missAnswer `json:"misses"`
}

// missAnswer is why some tokens were not cached: see miss.Part.
type missAnswer struct {
	Cause  string `json:"cause"`
	Tokens int    `json:"tokens"`
	Owner  string `json:"owner,omitempty"`
	Tier   string `json:"tier,omitempty"`
	// AgoMS is how long before the decision the block left, below 0 when it left later.
	AgoMS int64 `json:"ago_ms,omitempty"`
	// BehindMS is how old the event was that the router lacked at the decision.
	BehindMS int64 `json:"behind_ms,omitempty"`
}

// missesOf returns the parts of a report as JSON has them.
func missesOf(parts []miss.Part) []missAnswer {
	out := make([]missAnswer, len(parts))
	for i, p := range parts {
		out[i] = missAnswer{Cause: p.Cause.String(), Tokens: p.Tokens, AgoMS: p.Ago.Milliseconds(), BehindMS: p.Behind.Milliseconds()}
		if p.Owner != (kv.Owner{}) {
			out[i].Owner = p.Owner.String()
		}
		switch p.Cause {
		case miss.Evicted, miss.Restarted, miss.TierSlow, miss.IndexBehind:
			out[i].Tier = p.Tier.String()
		}
	}
	return out
}

// expectedMisses says which tokens of a prompt the chosen worker will have to compute, and why. The
// result is nil when the router explains no misses.
func expectedMisses(model *router.Model, m *router.Match) []missAnswer {
	p, history := m.Prompt, model.History()
	if p == nil || history == nil {
		return nil
	}
	cacheable := max(0, p.Tokens-1) / p.BlockSize * p.BlockSize // an engine computes the last token
	cached := min(m.CachedBlocks()*p.BlockSize, cacheable)
	r := history.Explain(p, &miss.Outcome{Predicted: cached, Delivered: cached, Cacheable: cacheable})
	return missesOf(r.Parts)
}

// Bounds of the query parameter limit of GET /v1/misses, and the default of that of GET
// /v1/decisions.
const defaultMisses, maxMisses, defaultDecisions = 100, 1024, 50

// misses answers GET /v1/misses.
func (a *API) misses(w http.ResponseWriter, req *http.Request) {
	limit, ok := a.limit(w, req, defaultMisses, maxMisses)
	if !ok {
		return
	}
	log, now := a.router.Misses(), time.Now()
	out := missesAnswer{Explained: a.router.ExplainsMisses(), Tokens: log.Tokens(), Requests: []missedAnswer{}}
	for _, e := range log.Recent(limit) {
		one := missedAnswer{RequestID: e.Request, Model: e.Model, Worker: e.Worker, AgeSeconds: now.Sub(e.At).Seconds(),
			Tokens: e.Tokens, Predicted: e.Predicted, Delivered: e.Delivered, Misses: missesOf(e.Parts)}
		if e.Difference.Cause != miss.None {
			one.Difference = e.Difference.Cause.String()
		}
		out.Requests = append(out.Requests, one)
	}
	a.answer(w, http.StatusOK, &out)
}

// limit returns the query parameter limit. Ok is false when it is not in 0..most: then the request
// is answered.
func (a *API) limit(w http.ResponseWriter, req *http.Request, byDefault, most int) (limit int, ok bool) {
	text := req.URL.Query().Get("limit")
	if text == "" {
		return byDefault, true
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 0 || limit > most {
		a.fail(w, http.StatusBadRequest, fmt.Errorf("limit: %.64q is not a number in 0..%d", text, most))
		return 0, false
	}
	return limit, true
}

// decisionAnswer is one decision in GET /v1/decisions.
type decisionAnswer struct {
	RequestID  string  `json:"request_id"`
	Model      string  `json:"model"`
	AgeSeconds float64 `json:"age_seconds"`
	WaitedMS   float64 `json:"waited_ms"`
	Tokens     int     `json:"prompt_tokens"`
	BlockSize  int     `json:"block_size"`
	Quality    string  `json:"quality"`
	// Explanation has the chosen worker first. Its compared is 0 when the others were not recorded.
	Explanation explanationAnswer `json:"explanation"`
}

// decisions answers GET /v1/decisions.
func (a *API) decisions(w http.ResponseWriter, req *http.Request) {
	limit, ok := a.limit(w, req, defaultDecisions, decisions.MaxDecisions)
	if !ok {
		return
	}
	now := time.Now()
	out := []decisionAnswer{}
	for _, d := range a.router.Decisions().Recent(limit, now) {
		e := explanationAnswer{Workers: []candidateAnswer{candidateOf(&d.Chosen)}, Compared: d.Compared, Score: d.Mode}
		for i := range d.Others {
			e.Workers = append(e.Workers, candidateOf(&d.Others[i]))
		}
		out = append(out, decisionAnswer{RequestID: d.Request, Model: d.Model, AgeSeconds: now.Sub(d.At).Seconds(),
			WaitedMS: float64(d.Waited) / float64(time.Millisecond), Tokens: d.Tokens, BlockSize: d.BlockSize, Quality: d.Quality, Explanation: e})
	}
	a.answer(w, http.StatusOK, out)
}

// Tokenized are the tokens of a request's prompt.
type Tokenized struct {
	Model  string   `json:"model"`
	Tokens []uint32 `json:"tokens"`
	// Exact is true when the engine will see these tokens. Reason says why not.
	Exact  bool   `json:"exact"`
	Reason string `json:"reason,omitempty"`
}

// maxTokenized bounds the bytes of a request of POST /v1/tokens.
const maxTokenized = 1 << 20

// errNoTokens says that no worker makes tokens of a text.
var errNoTokens = errors.New("tokens: the router has no front door, whose workers make tokens of a text; send token ids")

// tokens answers POST /v1/tokens: the tokens of an OpenAI request's prompt, as the front door routes
// it. Nothing is booked. The call's body counts in the budget of bodies, and the call takes a slot, as
// those of route requests.
func (a *API) tokens(w http.ResponseWriter, req *http.Request) {
	control.ReadOnly(req)
	if a.tokenize == nil {
		a.fail(w, http.StatusConflict, errNoTokens)
		return
	}
	host, _, _ := net.SplitHostPort(req.RemoteAddr) // callers without an address are one client
	budgeted := a.service.bodies.Wrap(http.MaxBytesReader(w, req.Body, maxTokenized), host, bodies.ReadBy(w, req))
	defer budgeted.Done()
	body, err := io.ReadAll(budgeted)
	if err != nil {
		a.fail(w, badBody(err), err)
		return
	}
	budgeted.Decoded()
	release, err := a.service.takeSlot()
	if err != nil {
		a.fail(w, http.StatusServiceUnavailable, err)
		return
	}
	defer release()
	t, err := a.tokenize(req.Context(), body)
	switch {
	case req.Context().Err() != nil:
		gone := context.Cause(req.Context())
		a.fail(w, a.service.status(gone), gone)
	case err != nil:
		a.fail(w, http.StatusBadRequest, err)
	case t.Tokens == nil:
		a.fail(w, http.StatusServiceUnavailable, fmt.Errorf("tokens: %s", t.Reason))
	default:
		a.answer(w, http.StatusOK, &t)
	}
}

// takeSlot takes a slot of s.routing. The caller must call release; later calls have no effect. The
// error is errBusy.
func (s *service) takeSlot() (release func(), err error) {
	select {
	case s.routing <- struct{}{}:
		return sync.OnceFunc(func() { <-s.routing }), nil
	default:
		return nil, errBusy
	}
}
