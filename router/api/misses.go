package api

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
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

// Bounds of the query parameter limit of GET /v1/misses.
const defaultMisses, maxMisses = 100, 1024

// misses answers GET /v1/misses.
func (a *API) misses(w http.ResponseWriter, req *http.Request) {
	limit := defaultMisses
	if text := req.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 || limit > maxMisses {
			a.fail(w, http.StatusBadRequest, fmt.Errorf("limit: %.64q is not a number in 0..%d", text, maxMisses))
			return
		}
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
