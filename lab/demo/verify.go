package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// snapshot is what the parts of a cluster say about themselves at one time.
type snapshot struct {
	engines []engineState
	agents  []agentStats
	pools   []agentPool
	feeds   []routerFeed
	dump    routerDump
}

// settled is how a cluster came to rest.
type settled struct {
	snapshot
	// unsettled says what was still moving; empty if nothing was.
	unsettled string
	// unsound lists streams and feeds that are not exact.
	unsound []string
	// diff is how the router's picture differs from the truth.
	diff divergence
}

// settle waits until engines are idle, agents quiet, the router has applied
// every event, every stream and feed is exact and the router's picture equals the
// truth. It gives up after the limit for that and then reports what it saw last.
func (c *demoCluster) settle(ctx context.Context, calls *caller) (*settled, error) {
	s := new(settled)
	var failure error
	err := poll(ctx, calls.limits.settle, func() (bool, error) {
		if failure = s.look(ctx, c, calls); failure != nil {
			return false, failure
		}
		return s.unsettled == "" && len(s.unsound) == 0 && s.diff.Count == 0, nil
	})
	if failure != nil {
		return nil, failure
	}
	if ctx.Err() != nil {
		return nil, err
	}
	return s, nil
}

// look takes a new snapshot. Blocks are compared only when nothing moves.
func (s *settled) look(ctx context.Context, c *demoCluster, calls *caller) error {
	*s = settled{}
	for _, a := range c.agents {
		var stats agentStats
		if err := calls.get(ctx, a.endpoint, "/v1/stats", &stats); err != nil {
			return err
		}
		s.agents = append(s.agents, stats)
	}
	for _, e := range c.engines {
		var state engineState
		if err := calls.list(ctx, e.endpoint, "/v1/state", &state); err != nil {
			return err
		}
		s.engines = append(s.engines, state)
	}
	if c.routed() {
		if err := calls.get(ctx, c.router, "/v1/feeds", &s.feeds); err != nil {
			return err
		}
	}
	s.unsound = s.inexact(c)
	if s.unsettled = s.moving(c); s.unsettled != "" {
		return nil
	}
	for _, a := range c.agents {
		var pools []agentPool
		if err := calls.list(ctx, a.control, "/v1/pools", &pools); err != nil {
			return err
		}
		s.pools = append(s.pools, pools...)
	}
	if !c.routed() {
		return nil
	}
	if err := calls.list(ctx, c.control, "/v1/dump", &s.dump); err != nil {
		return err
	}
	s.diff = compare(s.dump, s.snapshot.engines, s.pools)
	return nil
}

// moving says what has not come to rest, or nothing.
func (s *snapshot) moving(c *demoCluster) string {
	for i, e := range s.engines {
		if !e.Idle {
			return c.engines[i].process + " is busy"
		}
	}
	for i := range s.agents {
		if !s.agents[i].Quiet {
			return c.agents[i].process + " is busy"
		}
	}
	if !c.routed() {
		return ""
	}
	feeds := s.feedsByPublisher()
	for i := range s.agents {
		for _, st := range s.agents[i].Streams {
			f := feeds[st.PublisherID]
			if f.Cursor != st.LastEventID {
				return fmt.Sprintf("the router is at event %d of %s, its publisher at %d", f.Cursor, st.Owner, st.LastEventID)
			}
			// Until this announcement is there, no digest was compared at this event.
			if f.Announced != st.LastEventID {
				return fmt.Sprintf("the router has not heard the announcement of event %d of %s", st.LastEventID, st.Owner)
			}
		}
	}
	return ""
}

func (s *snapshot) feedsByPublisher() map[string]routerFeed {
	feeds := make(map[string]routerFeed, len(s.feeds))
	for _, f := range s.feeds {
		feeds[f.PublisherID] = f
	}
	return feeds
}

// inexact lists what agents and router do not vouch for: engines without a
// stream, streams without a feed, streams and feeds that say that they are not
// exact, feeds whose digest differs or whose gaps were not all repaired.
func (s *snapshot) inexact(c *demoCluster) []string {
	var found []string
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	streams := make(map[string]bool)
	feeds := s.feedsByPublisher()
	for i := range s.agents {
		for _, st := range s.agents[i].Streams {
			streams[st.Owner] = true
			if st.Health != exact {
				note("%s: the stream of %s is %s", c.agents[i].process, st.Owner, st.Health)
			}
			if _, ok := feeds[st.PublisherID]; !ok && c.routed() {
				note("router: no feed of %s", st.Owner)
			}
		}
	}
	for i := range s.engines {
		owner := kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(s.engines[i].WorkerID), Rank: kv.DPRank(s.engines[i].Rank)}).String()
		if !streams[owner] {
			note("no agent has a stream of %s", owner)
		}
	}
	for _, f := range s.feeds {
		if f.Health != exact {
			note("router: the feed of %s is %s", f.Owner, f.Health)
		}
		if !f.DigestOK {
			note("router: the digest of %s differs", f.Owner)
		}
		if f.Repaired != f.Gaps {
			note("router: %d of %d gaps in the feed of %s were repaired", f.Repaired, f.Gaps, f.Owner)
		}
	}
	return found
}

// exact is what streams and feeds say that have missed nothing.
const exact = "exact"

// residency says that an owner holds a block in a tier.
type residency struct {
	kind string
	id   uint64
	rank uint32
	hash string
	tier string
}

func (r residency) String() string {
	return fmt.Sprintf("%s %d/%d block %s in %s", r.kind, r.id, r.rank, r.hash, r.tier)
}

// divergence is how two pictures of who holds what differ.
type divergence struct {
	// Count triples are in one picture only, out of Compared in either.
	Count, Compared int
	// First describes the first few, in order.
	First []string
}

const maxDivergencesShown = 5

// compare holds the router's dump against what engines and pools say they hold.
func compare(dump routerDump, engines []engineState, pools []agentPool) divergence {
	const believed, held = 1, 2
	seen := make(map[residency]uint8)
	for i := range dump {
		o := dump[i].Owner()
		for _, b := range dump[i].Blocks() {
			seen[residency{o.Kind.String(), o.ID, uint32(o.Rank), fmt.Sprintf("%016x", b.Hash), dump[i].Tier}] |= believed
		}
	}
	for _, e := range engines {
		for _, hash := range e.Blocks {
			seen[residency{"worker", e.WorkerID, e.Rank, hash, "device"}] |= held
		}
	}
	for _, p := range pools {
		for _, b := range p.Blocks {
			for _, t := range b.Tiers {
				seen[residency{"pool", p.Pool, 0, b.Hash, t}] |= held
			}
		}
	}
	d := divergence{Compared: len(seen)}
	var all []string
	for r, who := range seen {
		switch who {
		case believed:
			all = append(all, "router only: "+r.String())
		case held:
			all = append(all, "owner only:  "+r.String())
		}
	}
	d.Count = len(all)
	slices.Sort(all)
	d.First = all[:min(len(all), maxDivergencesShown)]
	return d
}

// fillReport copies counters and comparison into a report.
func (s *settled) fillReport(r *RunReport) {
	for i := range s.engines {
		st := &s.engines[i].Stats
		r.BlocksVerified += st.BlocksVerified
		r.WrongBytes += st.WrongBytes
		r.LoadsFailed += st.LoadsFailed
		r.FramesDropped += st.FramesDropped
		r.Resets += st.Resets
	}
	for i := range s.agents {
		r.Events.add(s.agents[i].Events)
	}
	r.Settled, r.unsettled = s.unsettled == "", s.unsettled
	r.Unsound = s.unsound
	r.Diverged, r.Compared, r.divergence = s.diff.Count, s.diff.Compared, s.diff.First
}

// wrongBytes adds up what the engines found wrong.
func (s *snapshot) wrongBytes() (n uint64) {
	for i := range s.engines {
		n += s.engines[i].Stats.WrongBytes
	}
	return n
}

// corruptReads adds up the blocks that the agents read from disk and refused.
func (s *snapshot) corruptReads() (n uint64) {
	for i := range s.agents {
		for _, p := range s.agents[i].Pools {
			n += p.CorruptReads
		}
	}
	return n
}

// byHash finds the pools' blocks by their SequenceHash.
func (s *snapshot) byHash() map[string]poolBlock {
	m := make(map[string]poolBlock)
	for _, p := range s.pools {
		for _, b := range p.Blocks {
			m[b.Hash] = b
		}
	}
	return m
}
