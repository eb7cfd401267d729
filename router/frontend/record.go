package frontend

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// record is what the access log and the metrics show of a request.
type record struct {
	status          int
	failed          string
	worker, quality string
	// predicted and delivered are cached tokens. delivered is -1 until it is known.
	predicted, delivered int
	attempts             int
	output               int
	booked, first, last  time.Time
	gap                  func(time.Duration)
}

// sent records that the request goes to the worker of a booking.
func (q *request) sent(d *Door, b *booking) {
	r := &q.record
	r.attempts++
	r.worker, r.quality, r.booked = b.match.Worker.String(), string(b.match.Quality), time.Now()
	r.predicted, r.delivered = b.predicted(len(q.prompt.Tokens)), -1
	r.gap = d.metrics.Gap(q.served.Model, r.worker)
}

// token records an event with a token.
func (q *request) token(d *Door) {
	r, now := &q.record, time.Now()
	if r.first.IsZero() {
		r.first = now
		d.metrics.FirstToken(q.served.Model, r.worker, now.Sub(q.began))
	} else {
		r.gap(now.Sub(r.last))
	}
	r.last = now
}

// used records what the worker reports of its use.
func (q *request) used(d *Door, b *booking, u openai.Usage) {
	d.options.Workers.NoteCachedTokens(b.worker.ID, u.HasCached)
	r := &q.record
	if u.Completion > 0 {
		r.output = u.Completion
	}
	if u.HasCached {
		r.delivered = u.Cached
	}
	b.output(len(q.tokens) + u.Completion)
}

// finish records the end of a request.
func (d *Door) finish(q *request) {
	r, model := &q.record, q.served.Model
	d.metrics.Answered(q.route.String(), model, r.status)
	if r.worker != "" {
		d.metrics.Ended(model, r.worker, time.Since(q.began), r.output)
		d.expected.learn(q.tenant, model, r.output)
		if r.delivered >= 0 && len(q.prompt.Tokens) > 0 {
			d.metrics.Cached(model, r.quality, r.predicted, r.delivered)
		}
	}
	if d.options.AccessLog {
		d.logRequest(q)
	}
}

func (d *Door) logRequest(q *request) {
	r := &q.record
	fields := []zap.Field{
		zap.String("request", q.id), zap.String("client", q.http.RemoteAddr), zap.String("method", q.http.Method),
		zap.String("path", q.http.URL.Path), zap.String("model", q.served.Model), zap.Int("status", r.status),
		zap.Duration("took", time.Since(q.began)),
	}
	if q.caller != nil && q.caller.Tenant != "" {
		fields = append(fields, zap.String("tenant", q.caller.Tenant), zap.String("key", q.caller.Key))
	}
	if r.worker != "" {
		fields = append(fields, zap.String("worker", r.worker), zap.Int("attempts", r.attempts),
			zap.Int("prompt_tokens", len(q.tokens)), zap.Int("output_tokens", r.output),
			zap.Int("cached_predicted", r.predicted), zap.Int("cached_delivered", r.delivered))
	}
	if !r.first.IsZero() {
		fields = append(fields, zap.Duration("first_token", r.first.Sub(q.began)))
	}
	if r.failed != "" {
		fields = append(fields, zap.String("error", r.failed))
	}
	d.log.Info("request", fields...)
}
