package schedule

import (
	"fmt"
	"math"
)

// Price is what a request is expected to take on a worker, in milliseconds.
type Price struct {
	// Wait is the time until the worker begins to compute the prompt, and TTFT the time to the first
	// token, which includes Wait. Decode is the time from there to the last token.
	Wait, TTFT, Decode float64
	// Machine is the time of the worker that the request uses. Imposed is what the request costs the
	// worker's other requests, present and future, and the cache.
	Machine, Imposed float64
	// Doubt is the error of the worker's measures: a standard deviation of their logarithm.
	Doubt float64
}

// Objective says which parts of a Price count.
type Objective uint8

const (
	// ObjectiveBalanced adds the time to the first token, the time of the answer and what is imposed.
	ObjectiveBalanced Objective = iota
	// ObjectiveTTFT leaves out the time of the answer.
	ObjectiveTTFT
	// ObjectiveThroughput adds the time of the machine and what is imposed.
	ObjectiveThroughput
)

// String returns "balanced", "ttft" or "throughput".
func (o Objective) String() string {
	switch o {
	case ObjectiveBalanced:
		return "balanced"
	case ObjectiveTTFT:
		return "ttft"
	case ObjectiveThroughput:
		return "throughput"
	}
	return fmt.Sprintf("objective(%d)", uint8(o))
}

// Total returns the milliseconds by which workers are compared.
func (p *Price) Total(o Objective) float64 {
	switch o {
	case ObjectiveTTFT:
		return p.TTFT + p.Imposed
	case ObjectiveThroughput:
		return p.Machine + p.Imposed
	}
	return p.TTFT + p.Decode + p.Imposed
}

// usable reports whether all parts are finite and not negative.
func (p *Price) usable() bool {
	for _, v := range [...]float64{p.Wait, p.TTFT, p.Decode, p.Machine, p.Imposed, p.Doubt} {
		if !(v >= 0 && v <= math.MaxFloat64/8) { // in this form it refuses NaN too
			return false
		}
	}
	return true
}

// Estimator predicts what a request takes on each worker. It is called once per decision under the
// scheduler's lock: it must be quick, must not block and must not call the scheduler.
type Estimator interface {
	// Prices sets prices[k] to the price of candidate k, for all in.Len() candidates. Without a measure
	// ok is false, and why names the measure, such as "no prefill time of worker 7/0 yet". The decision
	// then falls back to weights. in and prices are valid only during the call.
	//
	// While an Estimator is in use, in.Loads counts for each booked request the tokens of its
	// prompt less LocalTokens.
	Prices(in *Selection, prices []Price) (why string, ok bool)
}

// maxTie is the largest difference to the lowest price, as a share, at which prices count as equal.
const maxTie = 0.03

// pickPriced returns the number of the candidate with the lowest price. Prices within their error, at
// most maxTie, are equal: the least wait wins, and then the rendezvous hash of the prompt's first
// block, so that routers agree on where a new prefix goes.
func (s *CostSelector) pickPriced(in *Selection) (candidate int) {
	lowest := math.Inf(1)
	for _, c := range s.costs {
		lowest = min(lowest, c)
	}
	best, bestWait, bestHash := -1, 0.0, uint64(0)
	key := uint64(0)
	if len(in.Request.Sequence) > 0 {
		key = uint64(in.Request.Sequence[0])
	}
	for k, c := range s.costs {
		p := &s.prices[k]
		if c > lowest*(1+min(maxTie, p.Doubt)) {
			continue
		}
		hash := scatter(key ^ scatter(uint64(in.Members.List[in.At(k)].Worker.ID)<<16^uint64(in.Members.List[in.At(k)].Worker.Rank)))
		if best < 0 || p.Wait < bestWait || p.Wait == bestWait && hash > bestHash {
			best, bestWait, bestHash = k, p.Wait, hash
		}
	}
	return best
}

// scatter is a bijection of 64-bit numbers.
func scatter(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
