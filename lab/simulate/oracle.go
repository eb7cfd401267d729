package simulate

import (
	"cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// oracle computes prices by the production formula from what is true: the step table, the state of
// each engine, the lengths of all answers and the rate of requests.
type oracle struct {
	router *router
}

var _ schedule.Estimator = (*oracle)(nil)

// Prices implements schedule.Estimator.
func (o *oracle) Prices(in *schedule.Selection, prices []price.Price) (why string, ok bool) {
	c := o.router.cluster
	hits := in.Request.Hits
	for k := range prices {
		m := in.At(k)
		for len(hits) > 0 && int(hits[0].Member) < m {
			hits = hits[1:]
		}
		var h index.Hits
		if len(hits) > 0 && int(hits[0].Member) == m {
			h = hits[0].Hits
		}
		e := c.engines[in.Members.List[m].Worker]
		t := o.termsOf(e)
		w := estimate.Work{Prompt: float64(in.Request.Tokens), Output: float64(cmp.Or(in.Request.ExpectedOutput, o.router.current.output)),
			Compute: float64(max(1, in.Request.Tokens-schedule.LocalTokens(h, in.Request.BlockSize)))}
		load := e.LoadSeconds(int(h[kv.TierHost]), int(h[kv.TierDisk]))
		if in.Request.HandedOver { // another worker has computed the prompt
			blocks := (in.Request.Tokens - 1) / in.Request.BlockSize
			load = e.NetworkSeconds(max(0, blocks-int(h[kv.TierDevice])))
			w.Compute = float64(in.Request.Tokens - blocks*in.Request.BlockSize)
		}
		s := o.situation(e, &t, w.Compute)
		s.Load = load
		prices[k] = t.Price(&s, &w)
		prices[k].Cached = w.Prompt - w.Compute
	}
	return "", true
}

// situation returns what an engine has to do.
func (o *oracle) situation(e *engine.Engine, t *estimate.Terms, compute float64) estimate.Situation {
	c := o.router.cluster
	h := &c.scenario.Hardware
	s := estimate.Situation{Budget: float64(h.Budget), Arrivals: c.rate, Reuse: c.reuse}
	left, queued := 0.0, 0.0
	e.Each(func(l engine.Life) {
		if l.Decodes {
			s.Running++
			s.Context += float64(l.Tokens)
			left += float64(l.Left)
			return
		}
		queued += float64(l.Target - l.Tokens)
		w := estimate.Work{Prompt: float64(l.Target), Compute: float64(max(1, l.Target-l.Tokens))}
		s.Backlog += t.Request + t.Token*w.Compute + t.Pair*w.Pairs()
	})
	s.Left = left / max(1, s.Running)
	token := t.Step + t.Running*s.Running + t.Context*s.Context
	size := float64(h.BlockSize * h.Blocks)
	if over := e.Used() + (queued+compute)/size - 1; over > 0 && s.Running > 0 {
		s.MemoryWait = over * s.Left * token
	}
	requests, prompts := c.share(e.ID().ID)
	s.Arrivals *= requests
	s.Busy = c.rate * prompts * c.promptSeconds / e.Speed()
	return s
}

// termsOf returns the true terms of an engine: the slopes of the table.
func (o *oracle) termsOf(e *engine.Engine) estimate.Terms {
	ms := o.router.cluster.scenario.Hardware.Steps.Milliseconds
	token := (ms(2048, 0, 0) - ms(512, 0, 0)) / 1536
	t := estimate.Terms{
		Token: token, Request: max(0, ms(512, 0, 0)-512*token), Pair: (ms(2048, 64e6, 0) - ms(2048, 0, 0)) / 64e6,
		Step: ms(8, 0, 0), Running: (ms(64, 0, 0) - ms(8, 0, 0)) / 56, Context: (ms(32, 0, 128e3) - ms(32, 0, 0)) / 128e3,
	}
	t.Scale(1 / (1e3 * e.Speed()))
	return t
}
