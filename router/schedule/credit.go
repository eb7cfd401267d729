package schedule

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/router/index"
)

// credit returns the request of a decision with the blocks in flight as hits on the device: those that its
// members' running requests share with it. An engine caches a block when it is computed, so a request that
// joins finds the prefix there: its wait includes the prompts ahead, and the one that computes the prefix is
// among them. The index learns of such a block only when the step has ended. The result is the request
// itself if nothing is in flight.
//
// A running request counts until it ends. If it ends before its prompt is computed, the account makes
// another request compute the prefix: see load.Awaited. The account bounds the memory.
func (s *CostSelector) credit(in *Selection) *Request {
	r := in.Request
	if len(in.Active) == 0 || len(r.Hits) == 0 && len(r.Overlaps) > 0 {
		return r
	}
	hits := append(s.hits[:0], r.Hits...)
	for _, a := range in.Active {
		blocks := r.inFlight(a.Blocks)
		at, ok := slices.BinarySearchFunc(hits[:len(r.Hits)], a.Member, func(h index.Hit, m int32) int { return cmp.Compare(h.Member, m) })
		if ok {
			hits[at].Hits.RaiseDevice(blocks)
		} else if blocks > 0 {
			h := index.Hit{Member: a.Member}
			h.Hits.RaiseDevice(blocks)
			hits = append(hits, h)
		}
	}
	slices.SortFunc(hits, func(a, b index.Hit) int { return cmp.Compare(a.Member, b.Member) })
	s.hits = hits
	in.credited = *r
	in.credited.Hits = hits
	return &in.credited
}

// inFlight returns Result.InFlight for member m: 0 unless the decision credits blocks in flight.
func (in *Selection) inFlight(m int32) uint32 {
	if !in.credits {
		return 0
	}
	return in.Request.inFlight(sharedOf(in.Active, m))
}

// inFlight returns how many of the leading blocks that r shares with running requests r can reuse.
func (r *Request) inFlight(shared int32) uint32 {
	most := max(0, r.Tokens-1) / r.BlockSize // an engine computes the last token
	return uint32(min(most, int(shared)))
}

// Expected returns the hits that the worker's engine will find: Hits, and the blocks in flight on the device.
func (r *Result) Expected() index.Hits {
	h := r.Hits
	h.RaiseDevice(r.InFlight)
	return h
}
