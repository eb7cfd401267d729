package estimate

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// Terms are what an engine's work takes, in seconds. The price needs nothing else of an engine.
type Terms struct {
	// Request, Token and Pair are what a prompt takes: once, for each token that is computed, and for
	// each pair of such a token with a token that it attends to.
	Request, Token, Pair float64
	// Step, Running and Context are what the next token of every running request takes: once, for each
	// running request, and for each token of their contexts.
	Step, Running, Context float64
}

// Situation is what a worker has to do when a request arrives.
type Situation struct {
	// Backlog is the seconds of the prompts that are ahead, and Load the seconds until the request's
	// cached blocks are on the device.
	Backlog, Load float64
	// Running is the number of requests that decode, and Context the tokens of their contexts.
	Running, Context float64
	// Budget is the number of tokens that a step computes.
	Budget float64
	// MemoryWait is the seconds until the device has room for the request.
	MemoryWait float64
	// Arrivals are requests per second, and Busy is the share of time that their prompts take.
	Arrivals, Busy float64
	// Reuse is the chance that a token that has to leave the device is asked for again.
	Reuse float64
	// Left is the number of tokens that a running request still gets.
	Left float64
}

// Work is what a request asks for.
type Work struct {
	// Prompt is its length in tokens, of which Compute are to be computed.
	Prompt, Compute float64
	// Output is the number of tokens of the answer.
	Output float64
}

// Beside returns the seconds of a step that computes no prompt.
func (t *Terms) Beside(running, context float64) float64 {
	return t.Step + t.Running*running + t.Context*context
}

// stretch is how much longer prompts take because steps are shared with running requests.
func (t *Terms) stretch(beside, budget float64) float64 {
	if t.Token == 0 {
		return 1
	}
	return 1 + beside/(t.Token*budget)
}

// Pairs returns the pairs of a token that is computed with a token that it attends to.
func (w *Work) Pairs() float64 { return w.Compute * (w.Prompt - w.Compute/2) }

// maxBusyShare bounds the share of time in the formula, so that a price is finite.
const maxBusyShare = 0.9

// Price returns the expected milliseconds of a request in a situation:
//
//	compute  = Request + Token*compute + Pair*pairs
//	beside   = Step + Running*running + Context*context          the step of those that run
//	first    = max(Backlog * (1 + beside/(Token*budget)), Load, MemoryWait) + compute + (steps + 1/2) * beside
//	decode   = output * min(step / (1 - busy), step + Token*budget)
//	           with step = Step + Running*(running+1) + Context*(context + prompt + output/2)
//	imposed  = running * compute                                 they wait while the prompt is computed
//	         + running * min(output, left) * (Running + Context*(prompt + output/2))
//	         + arrivals * compute * (Backlog + compute/2) / (1 - busy)  who comes while it waits
//	         + reuse * Token * compute                           what leaves the device is computed again
//
// where steps is compute tokens over what running requests leave of a step's budget. The half step is
// the rest of the one that runs, if requests run.
func (t *Terms) Price(s *Situation, w *Work) price.Price {
	compute := t.Request + t.Token*w.Compute + t.Pair*w.Pairs()
	steps := math.Ceil(w.Compute / max(1, s.Budget-s.Running))
	beside := t.Beside(s.Running, s.Context)
	idle := 1 - min(maxBusyShare, s.Busy)
	growth := t.Running + t.Context*(w.Prompt+w.Output/2) // what the request adds to a step
	step := beside + growth
	if s.Running > 0 {
		steps += 0.5 // for the step that runs
	}
	wait := max(s.Backlog*t.stretch(beside, s.Budget), s.Load, s.MemoryWait)
	return price.Price{
		Wait:    1e3 * wait,
		TTFT:    1e3 * (wait + compute + steps*beside),
		Decode:  1e3 * w.Output * min(step/idle, step+t.Token*s.Budget),
		Machine: 1e3 * (compute + w.Output*growth),
		Imposed: 1e3 * (s.Running*compute + s.Running*min(w.Output, s.Left)*growth +
			s.Arrivals*compute*(s.Backlog+compute/2)/idle + s.Reuse*t.Token*w.Compute),
	}
}

var _ schedule.Estimator = (*Estimator)(nil)

const (
	// defaultBudget is the number of tokens of a step of a worker that announces none.
	defaultBudget = 2048
	// defaultOutput is the number of tokens of an answer before one was seen.
	defaultOutput = 200
	// leftShare is what a running request still gets, as a share of a mean answer. Long answers are
	// more often among those that run.
	leftShare = 0.8
	// unmeasuredLoad is what loading a block takes, as a share of computing it, before a load report.
	unmeasuredLoad = 0.5
	// unproven multiplies the price of a worker that has requests and has shown no first token yet.
	unproven = 3
	// exploreDoubt is the error of a worker's terms above which its price is the optimistic one.
	// exploreShare is the largest share of requests that are sent for that.
	exploreDoubt, exploreShare = 0.25, 0.02
)

// Prices implements schedule.Estimator. It sets prices[k] to the expected milliseconds of the request
// on candidate k, by the formula of Terms.Price. ok is false without a measure that a candidate
// needs; why names the measure. Prices allocates only when the members have changed or a measure is
// missing.
func (e *Estimator) Prices(in *schedule.Selection, prices []price.Price) (why string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.opts.Now()
	at := now.Sub(e.start)
	e.alignColumns(in.Members, now)
	hits := in.Request.Hits
	work := Work{Prompt: float64(in.Request.Tokens)}
	mayExplore := float64(e.explored) < exploreShare*float64(e.booked)+1
	for k := range prices {
		m := in.At(k)
		c := &e.columns[m]
		w := c.worker
		if w == nil {
			return e.missing("worker " + in.Members.List[m].Worker.String() + " is not known")
		}
		if at >= c.nextReady || at > c.termsUntil {
			*c = e.columnOf(w, now)
		}
		if f := &w.model.prefill; f.samples < e.opts.MinSamples || !f.valid() {
			return e.missing("no prefill time of " + w.String() + " yet")
		}
		// Candidates and hits are both in the order of members.
		for len(hits) > 0 && int(hits[0].Member) < m {
			hits = hits[1:]
		}
		var h index.Hits
		if len(hits) > 0 && int(hits[0].Member) == m {
			h = hits[0].Hits
		}
		work.Output = float64(in.Request.ExpectedOutput)
		if work.Output == 0 {
			work.Output = w.model.meanOutput()
		}
		cached := float64(schedule.LocalTokens(h, in.Request.BlockSize))
		if in.Request.HandedOver {
			prices[k] = e.handedOver(c, in, m, h, work, now)
			prices[k].Cached = cached
			continue
		}
		work.Compute = promptTokens(in, h)
		terms := c.terms
		doubt := c.doubt
		if w.explores = mayExplore && doubt > exploreDoubt && w.exploring == nil; w.explores {
			terms.Scale(math.Exp(-min(doubt, 1)))
		} else if w.prefill.speed.count < e.opts.MinSamples && c.pending > 0 {
			// Nobody knows how fast it is: the first request shows.
			terms.Scale(unproven)
		}
		prices[k] = e.priceOf(c, &terms, in, m, h, work, now)
		prices[k].Doubt, prices[k].Cached = doubt, cached
	}
	return "", true
}

// handedOver returns the price of a request whose prompt another worker has computed, on the worker of a column,
// member m, which has hits h. The worker receives what its device lacks, after what earlier requests receive, and
// computes the last token.
func (e *Estimator) handedOver(c *column, in *schedule.Selection, m int, h index.Hits, w Work, now time.Time) price.Price {
	load := 0.0
	if r := &c.worker.model.handOver; r.valid(&e.opts, now) {
		load = float64(c.worker.prefill.receiving+lacks(in.Request.Tokens, in.Request.BlockSize, h)) / r.value
	}
	w.Compute = 1
	c.worker.explores = false
	s := e.situation(c, in, m, load, now.Sub(e.start))
	s.MemoryWait = memoryWait(&c.terms, &s, in, m, w.Prompt)
	return c.terms.Price(&s, &w)
}

// priceOf returns the price of a request on the worker of a column, member m, which has hits h. Blocks
// on disk are read or computed again, whichever is less: the engine chooses in the same way.
func (e *Estimator) priceOf(c *column, t *Terms, in *schedule.Selection, m int, h index.Hits, w Work, now time.Time) price.Price {
	at := now.Sub(e.start)
	priced := func(h index.Hits, compute float64) price.Price {
		w.Compute = compute
		s := e.situation(c, in, m, e.loadSeconds(c.worker, t, h, in.Request.BlockSize, now), at)
		s.MemoryWait = memoryWait(t, &s, in, m, w.Compute)
		return t.Price(&s, &w)
	}
	disk := h[kv.TierDisk]
	if disk > 0 && e.diskRate(c.worker, now) == 0 { // as slow as computing, until an engine has read some
		h[kv.TierDisk] = 0
		return priced(h, w.Compute+float64(disk)*float64(in.Request.BlockSize))
	}
	best := priced(h, w.Compute)
	if disk > 0 {
		h[kv.TierDisk] = 0
		if other := priced(h, w.Compute+float64(disk)*float64(in.Request.BlockSize)); other.TTFT+other.Imposed < best.TTFT+best.Imposed {
			return other
		}
	}
	return best
}

// loadSeconds returns how long it takes to bring hits to the device. What nobody has measured takes a
// share of the time of computing it.
func (e *Estimator) loadSeconds(w *worker, t *Terms, h index.Hits, blockSize int, now time.Time) float64 {
	blocks := h[kv.TierHost] + h[kv.TierDisk]
	if blocks == 0 {
		return 0
	}
	if load, missing := e.load(w, h, now); missing == "" {
		return load
	}
	return unmeasuredLoad * t.Token * float64(blocks) * float64(blockSize)
}

// situation returns what the worker of a column has to do.
func (e *Estimator) situation(c *column, in *schedule.Selection, m int, load float64, at time.Duration) Situation {
	s := Situation{Backlog: c.ready, Load: load, Running: c.running, Context: c.context, Budget: defaultBudget}
	if load > 0 { // earlier requests get their blocks first
		s.Backlog = c.all
	}
	if c.first > 0 { // a part of the running prompt is done
		s.Backlog -= max(0, min((at-c.runningSince).Seconds(), c.first))
	}
	// The account also has requests that are not followed here, such as those of routers that share their
	// bookings.
	other := max(0, float64(in.Loads.Requests[m])-c.running-c.pending)
	s.Backlog += float64(max(0, in.Loads.PrefillTokens[m]-c.accountTokens)) * c.terms.Token
	s.Running += other
	if elsewhere := c.waitingElsewhere + c.runningElsewhere; elsewhere > 0 && at <= c.elsewhereUntil {
		// Requests of other routers are of unknown length. The account counts some of those reported.
		unknown := max(0, elsewhere-other) / elsewhere
		s.Backlog += unknown * c.waitingElsewhere * c.promptSeconds
		s.Running += unknown * c.runningElsewhere
		s.Context += c.runningElsewhere * c.worker.model.prompts.value
	}
	if len(in.Workers) > m {
		if b := in.Workers[m].MaxBatchedTokens; b > 0 {
			s.Budget = float64(b)
			c.worker.budget = s.Budget
		}
	}
	model := c.worker.model
	s.Arrivals, s.Busy = c.arrivals, c.busy
	s.Left = leftShare * model.meanOutput()
	if model.prompts.value > 0 {
		s.Reuse = model.cached.value / model.prompts.value
	}
	return s
}

// memoryWait returns the seconds until a worker's device has room for the tokens that a request adds.
// Running requests end evenly.
func memoryWait(t *Terms, s *Situation, in *schedule.Selection, m int, compute float64) float64 {
	if len(in.Workers) <= m || in.Workers[m].TotalBlocks == 0 || in.Loads.ActiveBlocks[m] == 0 {
		return 0
	}
	active := float64(in.Loads.ActiveBlocks[m])
	over := active + compute/float64(in.Request.BlockSize) - float64(in.Workers[m].TotalBlocks)
	if over <= 0 {
		return 0
	}
	token := t.Beside(s.Running, s.Context)
	return over / min(active, float64(in.Workers[m].TotalBlocks)) * s.Left * min(token/(1-min(maxBusyShare, s.Busy)), token+t.Token*s.Budget)
}

// Scale multiplies all terms.
func (t *Terms) Scale(f float64) {
	t.Request, t.Token, t.Pair = t.Request*f, t.Token*f, t.Pair*f
	t.Step, t.Running, t.Context = t.Step*f, t.Running*f, t.Context*f
}

// meanOutput returns the mean number of tokens of an answer.
func (m *model) meanOutput() float64 {
	if m.output.weight == 0 {
		return defaultOutput
	}
	return m.output.value
}

// budgetTokens returns the number of tokens of the worker's steps.
func (w *worker) budgetTokens() float64 {
	if w.budget == 0 {
		return defaultBudget
	}
	return w.budget
}

// promptTokens returns how many tokens of the prompt a worker with these hits has to
// compute. A block of the shared cache that the worker lacks counts as cached by the
// multiplier, because nothing measures how long the fetch takes.
func promptTokens(in *schedule.Selection, hits index.Hits) float64 {
	r := in.Request
	tokens := float64(toCompute(r.Tokens, r.BlockSize, hits))
	if r.SharedHits == nil || in.Config.SharedMultiplier == 0 {
		return tokens
	}
	local := schedule.LocalTokens(hits, r.BlockSize) / r.BlockSize
	return max(1, tokens-in.Config.SharedMultiplier*float64(r.SharedHits.Beyond(local)*r.BlockSize))
}

// missing counts a decision without a price, and returns the results of Prices.
func (e *Estimator) missing(why string) (string, bool) {
	e.stats.Missing++
	return why, false
}
