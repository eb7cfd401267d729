package demo

import (
	"context"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// settled is how a cluster came to rest.
type settled struct{ *cluster.Picture }

// settle waits until the cluster has come to rest, and gives up after limit.
func (c *demoCluster) settle(ctx context.Context, l limits) (settled, error) {
	p, err := c.parts().Settle(ctx, l.settle)
	if err != nil {
		return settled{}, err
	}
	return settled{p}, nil
}

// fillReport copies counters and comparison into a report.
func (s settled) fillReport(r *RunReport) {
	for i := range s.Engines {
		st := &s.Engines[i].Stats
		r.BlocksVerified += st.BlocksVerified
		r.WrongBytes += st.WrongBytes
		r.LoadsFailed += st.LoadsFailed
		r.FramesDropped += st.FramesDropped
		r.Resets += st.Resets
	}
	for i := range s.Agents {
		r.Events.add(EventCounts(s.Agents[i].Events))
	}
	r.Settled, r.unsettled = s.Moving == "", s.Moving
	r.Unsound = s.Inexact
	r.Diverged, r.Compared, r.divergence = s.Diff.Diverged(), s.Diff.Compared, s.Diff.First
}

// wrongBytes adds up what the engines found wrong.
func (s settled) wrongBytes() (n uint64) {
	for i := range s.Engines {
		n += s.Engines[i].Stats.WrongBytes
	}
	return n
}

// corruptReads adds up the blocks that the agents read from disk and refused.
func (s settled) corruptReads() (n uint64) {
	for i := range s.Agents {
		for _, p := range s.Agents[i].Pools {
			n += p.CorruptReads
		}
	}
	return n
}

// byHash finds the pools' blocks by their SequenceHash.
func (s settled) byHash() map[string]cluster.Block {
	m := make(map[string]cluster.Block)
	for _, p := range s.Pools {
		for _, b := range p.Blocks {
			m[b.Hash] = b
		}
	}
	return m
}
