package schedule

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/router/index"
)

// credit returns the request of a decision with the blocks that its members' running requests share with it
// as hits on the device. An engine caches a block when it is computed, so a request that joins finds
// the prefix there: its wait includes the prompts ahead, and the one that computes the prefix is among
// them. The index learns of such a block only when the step has ended. The result is the request itself if
// nothing is running that it shares.
//
// A running request counts until it ends, however it ends. The account bounds the memory.
func (s *CostSelector) credit(in *Selection) *Request {
	r := in.Request
	if len(in.Active) == 0 || len(r.Hits) == 0 && len(r.Overlaps) > 0 {
		return r
	}
	most := uint32(max(0, r.Tokens-1) / r.BlockSize) // an engine computes the last token
	hits := append(s.hits[:0], r.Hits...)
	for _, a := range in.Active {
		blocks := min(most, uint32(a.Blocks))
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
