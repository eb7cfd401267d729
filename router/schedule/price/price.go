package price

import (
	"cmp"
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
	// Cached is the tokens of the prompt that the worker has in any tier, or computes already.
	Cached float64
}

// Objective says which parts of a Price count.
type Objective uint8

const (
	// Balanced adds the time to the first token, of which Wait counts WaitWeight times, the time of the answer
	// and the cost to other requests.
	Balanced Objective = iota
	// TTFT is Balanced without the time of the answer.
	TTFT
	// Throughput adds the time of the machine and the cost to other requests.
	Throughput
)

// String returns "balanced", "ttft" or "throughput".
func (o Objective) String() string {
	switch o {
	case Balanced:
		return "balanced"
	case TTFT:
		return "ttft"
	case Throughput:
		return "throughput"
	}
	return fmt.Sprintf("objective(%d)", uint8(o))
}

// WaitWeight is how often a millisecond of waiting counts, except in Throughput. A wait is the least certain
// part: it grows with every stall of the worker and with every long prompt ahead.
const WaitWeight = 6

// Total returns the milliseconds by which workers are compared.
func (p *Price) Total(o Objective) float64 {
	first := p.TTFT + (WaitWeight-1)*p.Wait
	switch o {
	case TTFT:
		return first + p.Imposed
	case Throughput:
		return p.Machine + p.Imposed
	}
	return first + p.Decode + p.Imposed
}

// Usable reports whether all parts are finite and not negative.
func (p *Price) Usable() bool {
	for _, v := range [...]float64{p.Wait, p.TTFT, p.Decode, p.Machine, p.Imposed, p.Doubt, p.Cached} {
		if !(v >= 0 && v <= math.MaxFloat64/8) { // in this form it refuses NaN too
			return false
		}
	}
	return true
}

// maxTie is the largest difference to the lowest cost, as a share, at which costs count as equal.
const maxTie = 0.03

// Pick returns the number of the candidate with the lowest cost, of at least one. Costs within the
// doubt of their prices, at most 3 %, are equal: the most cached tokens win, so that conversations stay where
// they are, then the least wait, and then the rendezvous hash of
// key with the candidate's id. So routers agree on where a new prefix goes whose first block is key.
func Pick(costs []float64, prices []Price, key uint64, id func(candidate int) uint64) (candidate int) {
	lowest := math.Inf(1)
	for _, c := range costs {
		lowest = min(lowest, c)
	}
	best, highest := -1, uint64(0)
	for k, c := range costs {
		p := &prices[k]
		if c > lowest*(1+min(maxTie, p.Doubt)) {
			continue
		}
		hash := scatter(key ^ scatter(id(k)))
		if best < 0 || cmp.Or(cmp.Compare(prices[best].Cached, p.Cached), cmp.Compare(p.Wait, prices[best].Wait), cmp.Compare(highest, hash)) < 0 {
			best, highest = k, hash
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
