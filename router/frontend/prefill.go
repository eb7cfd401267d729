package frontend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// PrefillHeader names the worker that computed the prompt when another one answered.
const PrefillHeader = "X-Blockyard-Prefill-Worker"

// Split configures prefill and decode on different workers.
type Split struct {
	// Rule says which requests are split.
	Rule split.Rule
	// Timeout bounds the prefill, from its booking to its answer; 0 means 30 s. Then the decode
	// worker computes the prompt.
	Timeout time.Duration
	// Wait bounds how long a decode worker waits for blocks that the prefill worker has computed
	// and not stored yet; 0 means 1 s.
	Wait time.Duration
}

const (
	defaultPrefillTimeout = 30 * time.Second
	defaultHandOverWait   = time.Second
	// maxHandOverWait is the longest wait that the connector accepts.
	maxHandOverWait = time.Minute
)

// validate reports the first field that is out of range.
func (s *Split) validate() error {
	switch {
	case s.Timeout < 0:
		return fmt.Errorf("split: timeout: %s is negative", s.Timeout)
	case s.Wait < 0 || s.Wait > maxHandOverWait || s.Wait%time.Millisecond != 0:
		return fmt.Errorf("split: wait: %s is not in 1ms..%s, in whole milliseconds", s.Wait, maxHandOverWait)
	}
	if err := s.Rule.Validate(); err != nil {
		return fmt.Errorf("split: %w", err)
	}
	return nil
}

var errPrefillTime = errors.New("the time of the prefill is over")

// handOver is a prompt that a prefill worker has computed: what the decode worker gets.
type handOver struct {
	// body is the body of the decode worker's request.
	body []byte
	// partners are the decode workers that can get the blocks.
	partners map[kv.WorkerID]struct{}
	// cached are the prompt tokens that the decode worker will report as cached.
	cached int
}

// pair is a choice of prefill workers and of the decode workers that can get their blocks.
type pair struct {
	way     split.Way
	prefill map[kv.WorkerID]struct{}
	decode  []*workers.Worker
}

// partners returns the decode workers that can get the blocks of a prefill worker.
func (p *pair) partners(of *workers.Worker) map[kv.WorkerID]struct{} {
	set := make(map[kv.WorkerID]struct{})
	for _, w := range p.decode {
		if p.way == split.Engines && w.Facts.Engine == workers.EngineVLLM || p.way == split.Yard && w.Pool == of.Pool {
			set[w.ID] = struct{}{}
		}
	}
	return set
}

// prefill has a prefill worker compute the prompt of a request and sets q.handOver, unless one
// worker serves the request whole. Failures are counted, and q.handOver stays nil. refused is not
// nil when the request was at two workers that died.
func (d *Door) prefill(ctx context.Context, q *request) (refused *refusal) {
	set := d.options.Workers.PrefillFor(cmp.Or(q.served.LoRA, q.served.Model))
	// A gateway forwards to one worker.
	if len(set) == 0 || q.through != nil || !q.route.Generates() {
		return nil
	}
	model, err := d.model(q.served.Model)
	if err != nil {
		return nil // booking reports it
	}
	pair, why := d.worthSplitting(q, model, set)
	if why != "" {
		d.metrics.Split(why)
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.options.Split.Timeout, errPrefillTime)
	defer cancel()
	b, err := d.bookOn(ctx, q, model, wish{allowed: pair.prefill, override: q.override, expected: 1})
	if err != nil {
		d.log.Debug("no prefill worker is booked", zap.String("request", q.id), zap.Error(err))
		d.metrics.Split("not_booked")
		return nil
	}
	result := d.compute(ctx, q, b, pair)
	if result.err == nil {
		q.record.prefill = b.match.Worker.String()
		d.metrics.Split(pair.way.String())
		return nil
	}
	d.metrics.Split(result.reason)
	d.log.Info("the decode worker computes the prompt", zap.String("request", q.id), zap.String("worker", b.worker.URL), zap.Error(result.err))
	if d.died(q, b, &result) {
		return result.refusal(ctx, true)
	}
	return nil
}

// worthSplitting returns the workers for a request, or why one worker serves it whole.
func (d *Door) worthSplitting(q *request, model *router.Model, prefill map[kv.WorkerID]struct{}) (*pair, string) {
	switch why := split.Unfit(q.parsed); {
	case why != "":
		return nil, why
	case q.pinned != nil:
		return nil, split.Unsupported
	case len(q.prompt.Tokens) == 0:
		return nil, split.UnknownPrompt
	}
	decode := d.allowed(q, nil)
	pair := d.pairUp(prefill, decode)
	if pair == nil {
		return nil, split.NoPartner
	}
	rule := &d.options.Split.Rule
	if why := rule.Whole(len(q.tokens), mostCached(model, q, decode)); why != "" {
		return nil, why
	}
	if rule.Weighs() {
		loads := d.lightest(model, pair.prefill, decode)
		if rule.Bypass(loads[0], loads[1]) {
			return nil, split.Busy
		}
	}
	return pair, ""
}

// pairUp returns the prefill workers with decode workers that can get their blocks: those that
// share a pool, else those of vLLM; nil without any.
func (d *Door) pairUp(prefill, decode map[kv.WorkerID]struct{}) *pair {
	yard, engines := &pair{way: split.Yard, prefill: make(map[kv.WorkerID]struct{})}, &pair{way: split.Engines, prefill: make(map[kv.WorkerID]struct{})}
	pools, vllm := make(map[uint64]bool), false
	for id := range decode {
		if w, ok := d.options.Workers.Worker(id); ok {
			yard.decode = append(yard.decode, w)
			pools[w.Pool], vllm = true, vllm || w.Facts.Engine == workers.EngineVLLM
		}
	}
	engines.decode = yard.decode
	for id := range prefill {
		switch w, ok := d.options.Workers.Worker(id); {
		case !ok:
		case w.Pool != 0 && pools[w.Pool]:
			yard.prefill[id] = struct{}{}
		case vllm && w.Facts.Engine == workers.EngineVLLM && !d.lapses.Has(id, time.Now()):
			engines.prefill[id] = struct{}{}
		}
	}
	switch {
	case len(yard.prefill) > 0:
		return yard
	case len(engines.prefill) > 0:
		return engines
	}
	return nil
}

// mostCached returns how many tokens of a prompt the decode worker with most of them has, in
// any tier.
func mostCached(model *router.Model, q *request, decode map[kv.WorkerID]struct{}) (tokens int) {
	overlaps, err := model.Decide().Overlaps(q.query(model))
	if err != nil {
		return 0 // booking reports it
	}
	return split.MostCached(overlaps, decode, int(model.Key().BlockSize), len(q.tokens))
}

// lightest returns the load of the least loaded prefill worker and of the least loaded decode
// worker.
func (d *Door) lightest(model *router.Model, prefill, decode map[kv.WorkerID]struct{}) (least [2]split.Load) {
	loads, err := model.Decide().GetPotentialLoads(&router.Request{})
	if err != nil {
		return least // unknown is not busy
	}
	for i, set := range []map[kv.WorkerID]struct{}{prefill, decode} {
		least[i].PrefillTokens = math.MaxInt
		for _, l := range loads {
			if _, ok := set[l.Worker.ID]; !ok || l.PrefillTokens >= least[i].PrefillTokens {
				continue
			}
			least[i].PrefillTokens = l.PrefillTokens
			if w, ok := d.options.Workers.Worker(l.Worker.ID); ok {
				least[i].Batch = w.MaxBatchedTokens
			}
		}
	}
	return least
}

// compute has the worker of a booking compute the prompt, frees the booking and sets q.handOver.
func (d *Door) compute(ctx context.Context, q *request, b *booking, p *pair) (result outcome) {
	defer b.free()
	var ids []uint32
	if q.rendered() {
		ids = q.prompt.Tokens
	}
	body, err := openai.Apply(q.body, split.PrefillEdits(q.parsed, p.way.PrefillParams(q.route, ids))...)
	if err != nil {
		return outcome{err: err, reason: reasonBad}
	}
	d.options.Workers.Begin(b.match.Worker.ID)
	defer func() { d.options.Workers.Done(b.match.Worker.ID, result.worker()) }()
	ctx, call := d.options.Tracer.StartCall(ctx, "prefill")
	call.Text("url.full", b.worker.URL)
	answer, result := d.ask(ctx, q, b, body)
	call.End(result.err)
	if result.err != nil {
		return result
	}
	b.firstToken()
	hand := &handOver{partners: p.partners(b.worker)}
	var params []byte
	if p.way == split.Yard {
		blocks := len(q.tokens) / max(1, b.worker.Facts.BlockSize)
		hand.cached = blocks * b.worker.Facts.BlockSize
		params = split.AwaitParams(max(1, blocks), d.options.Split.Wait, ids)
	} else {
		// vLLM reports what the prefill worker had cached.
		hand.cached = b.predicted(len(q.prompt.Tokens))
		if params, err = split.DecodeParams(answer, ids); err != nil {
			return d.lapsed(b, err)
		}
	}
	if hand.body, err = openai.Apply(q.body, openai.Edit{Key: "kv_transfer_params", Value: params}); err != nil {
		return outcome{err: err, reason: reasonBad}
	}
	q.handOver = hand
	return outcome{}
}

// lapsed returns the outcome of a prefill whose answer hands nothing over. The worker gets no
// prefills for a minute.
func (d *Door) lapsed(b *booking, err error) outcome {
	if d.lapses.Add(b.worker.ID, time.Now()) {
		d.log.Warn("the prefill worker hands no blocks over; for a minute it gets no prefills", zap.String("worker", b.worker.URL), zap.Error(err))
	}
	return outcome{err: err, reason: reasonNotHandedOver, status: http.StatusOK}
}

// ask sends a body to the worker of a booking and returns the answer, which is not streamed.
func (d *Door) ask(ctx context.Context, q *request, b *booking, body []byte) ([]byte, outcome) {
	resp, err := d.send(ctx, q, b, body)
	if err != nil {
		return nil, prefillOutcome(ctx, failedToSend(ctx, err))
	}
	defer resp.Body.Close() //nolint:errcheck // the answer has been read, or its rest does not matter
	answer, whole, err := readBounded(resp.Body, maxWhole)
	switch {
	case err != nil:
		return nil, prefillOutcome(ctx, failedToSend(ctx, err))
	case resp.StatusCode != http.StatusOK:
		return nil, outcome{err: fmt.Errorf("prefill worker answered %d: %.200q", resp.StatusCode, answer), reason: reasonStatus, status: resp.StatusCode}
	case !whole:
		return nil, outcome{err: errTooLong, reason: reasonBad}
	}
	return answer, outcome{}
}

// prefillOutcome tells the end of the prefill's time, which the worker answers for, from the
// end of the request's.
func prefillOutcome(ctx context.Context, o outcome) outcome {
	if errors.Is(context.Cause(ctx), errPrefillTime) {
		o.err, o.reason = errPrefillTime, reasonPrefillTime
	}
	return o
}
