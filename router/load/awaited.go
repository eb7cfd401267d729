package load

import "time"

// Awaited are the blocks From <= b < To of a request's Sequence that another request of the worker was
// about to compute, or was computing, when the request was booked. They are not in PrefillTokens. If the
// other one ends before its prefill is complete, the oldest request that awaits a block has to compute it:
// BlockSize tokens are added to its prefill. The router of a request alone knows what the request awaits, and
// tells the others of added tokens: see Progress.MovedTokens.
type Awaited struct{ From, To int32 }

// awaits reports whether the request was booked with Awaited blocks.
func (r *request) awaits() bool { return r.awaited.From < r.awaited.To }

// leave ends a request whose worker stays: others compute what it leaves.
func (a *Account) leave(r *request, now time.Duration) {
	a.handOver(r, now)
	a.end(r, now)
}

// handOver adds the blocks that r leaves uncomputed to the prefill of the requests that await them. Call it
// before the prefill of r is removed. The time is linear in the requests of the worker if some of them await
// blocks.
func (a *Account) handOver(r *request, now time.Duration) {
	w := r.workload
	if w.awaiting == 0 || r.prefillTokens == 0 || r.lastNode == nil {
		return
	}
	others := func(visit func(f *request, common int32)) {
		for f := w.requests.first; f != nil; f = f.links[byArrival].next {
			if f != r && f.lastNode != nil {
				visit(f, a.prompts.shared(r.lastNode, f.lastNode))
			}
		}
	}
	computed := r.awaited.To // the blocks before it are computed, or others compute them
	others(func(f *request, common int32) {
		if f.prefillTokens == 0 {
			computed = max(computed, common)
		}
	})
	others(func(f *request, common int32) {
		first, end := max(computed, f.awaited.From), min(common, f.awaited.To)
		if f.prefillTokens > 0 && first < end {
			w.prefill.move(f, int64(end-first)*int64(f.blockSize))
			a.journal.progressed(f)
			f.awaited.To = first
			if !f.awaits() {
				w.awaiting--
			}
		}
		computed = max(computed, common) // by f
	})
	a.updateColumns(w, now)
}
