package estimate

import "time"

// decodes follows the requests of one worker that have their first token, and learns what a token
// takes. One of them is the probe: between two blocks of its answer the worker took as many steps as
// the block has tokens.
type decodes struct {
	speed speed
	// running are the requests, in no order. context is the sum of their lengths in tokens.
	running []*request
	context float64
	probe   *request
	// elsewhere are the running requests of other routers, and elsewhereContext the tokens of their
	// contexts.
	elsewhere, elsewhereContext float64

	// Integrals over time since the probe's last block: seconds times requests, and times tokens.
	runningSeconds, contextSeconds float64
	countedUntil                   time.Time
	// since is the time of the probe's last block, and doneThen prefills.done at that time.
	since    time.Time
	doneThen [features]float64
}

// count adds the time until now to the integrals.
func (d *decodes) count(now time.Time) {
	if s := now.Sub(d.countedUntil).Seconds(); s > 0 && !d.countedUntil.IsZero() {
		d.runningSeconds += s * (float64(len(d.running)) + d.elsewhere)
		d.contextSeconds += s * (d.context + d.elsewhereContext)
	}
	d.countedUntil = now
}

// setElsewhere records how many requests of other routers run, and the tokens of their contexts.
func (d *decodes) setElsewhere(running, context float64, now time.Time) {
	d.count(now)
	d.elsewhere, d.elsewhereContext = running, context
}

// begin follows a request after its first token.
func (d *decodes) begin(r *request, now time.Time) {
	d.count(now)
	d.running = append(d.running, r)
	d.context += float64(r.prompt)
	r.running = true
}

// end ends the following of a request. It is in d.running.
func (d *decodes) end(r *request, now time.Time) {
	d.count(now)
	for i, other := range d.running {
		if other == r {
			last := len(d.running) - 1
			d.running[i] = d.running[last]
			d.running[last] = nil
			d.running = d.running[:last]
			break
		}
	}
	d.context -= float64(r.prompt + r.blocks*r.blockSize)
	if d.probe == r {
		d.probe = nil
	}
}

// block records a further block of r's answer. It returns the seconds and the numbers of a token when
// the probe has completed a block. prompts returns the seconds of prompts.
func (d *decodes) block(r *request, done [features]float64, prompts func([features]float64) float64, now time.Time) (s observation, ok bool) {
	d.count(now)
	r.blocks++
	d.context += float64(r.blockSize)
	if d.probe == nil {
		d.probe = r
	} else if d.probe != r {
		return observation{}, false
	} else if took := now.Sub(d.since).Seconds(); took > 0 && took < maxSeconds {
		var between [features]float64
		for i := range features {
			between[i] = done[i] - d.doneThen[i]
		}
		// Prompts that were computed meanwhile are known only roughly. They must not be most of it.
		others := 1 + d.elsewhere/float64(len(d.running)) // other routers' prompts are about like ours
		// Blocks that are reported together took no steps of their own.
		tokens := float64(r.blockSize)
		if rest := took - others*prompts(between); rest > 0.4*took && rest >= minSeconds*tokens {
			s = observation{[features]float64{1, d.runningSeconds / took, d.contextSeconds / took / 1e3}, rest / tokens, now}
			ok = true
		}
	}
	d.since, d.doneThen, d.runningSeconds, d.contextSeconds = now, done, 0, 0
	return s, ok
}
