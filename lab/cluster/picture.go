package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// HealthExact is the health of a stream or feed that has missed no event.
const HealthExact = "exact"

// lookEvery is the time between two looks of Settle.
const lookEvery = 50 * time.Millisecond

// Parts are the processes that a Picture describes. Router may be nil.
type Parts struct {
	Agents  []*Agent
	Engines []Endpoint
	Router  *Router
	// Repaired makes a feed inexact while one of its gaps is not repaired. A router that was
	// started after a gap never repairs the gap.
	Repaired bool
}

// Picture has the answers of the processes at one time.
type Picture struct {
	Agents  []AgentStats
	Engines []engine.State
	Pools   []AgentPool
	Feeds   []RouterFeed
	// Moving names a part that is not idle; empty when all are. Inexact lists the streams
	// and feeds that have missed events.
	Moving  string
	Inexact []string
	// Diff is the difference between the router's index and the held blocks.
	Diff Difference
}

// Settle polls the processes until all are idle, every stream and feed is exact and the router's
// index equals what engines and pools hold. After limit it gives up and returns the last picture,
// which then shows the difference. The error names a process that does not answer.
func (p Parts) Settle(ctx context.Context, limit time.Duration) (*Picture, error) {
	for deadline := time.Now().Add(limit); ; {
		last := time.Now().After(deadline)
		seen, err := p.Look(ctx, last)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil && (last || seen.settled()):
			return seen, nil
		case last:
			return nil, fmt.Errorf("within %s: %w", limit, err)
		}
		if err := Wait(ctx, lookEvery); err != nil {
			return nil, err
		}
	}
}

func (s *Picture) settled() bool {
	return s.Moving == "" && len(s.Inexact) == 0 && s.Diff.Diverged() == 0
}

// Look returns the state of every process now. It compares the blocks that engines and pools hold
// with the router's index only when all parts are idle or force is true, because a comparison
// during changes says nothing and is slow.
func (p Parts) Look(ctx context.Context, force bool) (*Picture, error) {
	s := new(Picture)
	for _, a := range p.Agents {
		var stats AgentStats
		if err := a.Get(ctx, "/v1/stats", &stats); err != nil {
			return nil, err
		}
		s.Agents = append(s.Agents, stats)
	}
	for _, e := range p.Engines {
		var state engine.State
		if err := e.Get(ctx, "/v1/state", &state); err != nil {
			return nil, err
		}
		s.Engines = append(s.Engines, state)
	}
	if p.Router != nil {
		if err := p.Router.Get(ctx, "/v1/feeds", &s.Feeds); err != nil {
			return nil, err
		}
	}
	s.Moving, s.Inexact = s.moving(p), s.inexact(p)
	if s.Moving != "" && !force {
		return s, nil
	}
	for _, a := range p.Agents {
		var pools []AgentPool
		if err := a.Control.Get(ctx, "/v1/pools", &pools); err != nil {
			return nil, err
		}
		s.Pools = append(s.Pools, pools...)
	}
	if p.Router == nil {
		return s, nil
	}
	believed, err := p.Router.Believed(ctx)
	s.Diff = Compare(Held(s.Engines, s.Pools), believed)
	return s, err
}

// moving returns the name of a part that is busy or behind, with the reason; empty when all are
// idle and the router has every stream's last event.
func (s *Picture) moving(p Parts) string {
	for i := range s.Engines {
		if !s.Engines[i].Idle {
			return p.Engines[i].Name + " is busy"
		}
	}
	streams := 0
	for i := range s.Agents {
		if !s.Agents[i].Quiet {
			return p.Agents[i].Endpoint.Name + " is busy"
		}
		for _, st := range s.Agents[i].Streams {
			streams++
			// The router compares digests at announcements: before the announcement of the
			// last event it has not compared that event's digest.
			if f := s.Feed(st.PublisherID); p.Router != nil && !f.CaughtUp(st) {
				return fmt.Sprintf("the router is at event %d of %s and heard of %d, its publisher is at %d",
					f.Cursor, st.Owner, f.Announced, st.LastEventID)
			}
		}
	}
	if p.Router != nil && len(s.Feeds) != streams {
		return fmt.Sprintf("the router follows %d feeds, agents have %d streams", len(s.Feeds), streams)
	}
	return ""
}

// inexact returns a line for each stream or feed (a stream at the router) that may have missed
// events, and for each engine without a stream. It is empty when everything is exact.
func (s *Picture) inexact(p Parts) (found []string) {
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for i := range s.Agents {
		for _, st := range s.Agents[i].Streams {
			if st.Health != HealthExact {
				note("%s: the stream of %s is %s", p.Agents[i].Endpoint.Name, st.Owner, st.Health)
			}
			if p.Router != nil && s.Feed(st.PublisherID).PublisherID == "" {
				note("router: no feed of %s", st.Owner)
			}
		}
	}
	for i := range s.Engines {
		if _, ok := s.Stream(s.Engines[i].WorkerID, s.Engines[i].Rank); !ok {
			note("no agent has a stream of %s", workerOwner(s.Engines[i].WorkerID, s.Engines[i].Rank))
		}
	}
	for _, f := range s.Feeds {
		if f.Health != HealthExact {
			note("router: the feed of %s is %s", f.Owner, f.Health)
		}
		if !f.DigestOK {
			note("router: the digest of %s differs", f.Owner)
		}
		if p.Repaired && f.Repaired != f.Gaps {
			note("router: %d of %d gaps in the feed of %s were repaired", f.Repaired, f.Gaps, f.Owner)
		}
	}
	return found
}

// CaughtUp reports whether the router has applied every event of a stream and has
// heard the announcement of the last one.
func (f RouterFeed) CaughtUp(st AgentStream) bool {
	return f.PublisherID == st.PublisherID && f.Cursor == st.LastEventID && f.Announced == st.LastEventID
}

// Feed returns the router's feed of a publisher, zero if it has none.
func (s *Picture) Feed(publisher string) RouterFeed {
	for _, f := range s.Feeds {
		if f.PublisherID == publisher {
			return f
		}
	}
	return RouterFeed{}
}

// Stream returns the agents' stream of events of an engine's rank; false when no agent has one.
func (s *Picture) Stream(worker uint64, rank uint32) (AgentStream, bool) {
	owner := workerOwner(worker, rank)
	for i := range s.Agents {
		for _, st := range s.Agents[i].Streams {
			if st.Owner == owner {
				return st, true
			}
		}
	}
	return AgentStream{}, false
}

func workerOwner(worker uint64, rank uint32) string {
	return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(worker), Rank: kv.DPRank(rank)}).String()
}

// Residency says that an owner holds a block of a KV group in a tier.
type Residency struct {
	kind string
	id   uint64
	rank uint32
	hash string
	tier string
	// group is the KV group, 0 for the primary one.
	group uint32
}

// String describes the residency.
func (r Residency) String() string {
	return fmt.Sprintf("%s %d/%d block %s of group %d in %s", r.kind, r.id, r.rank, r.hash, r.group, r.tier)
}

// Difference compares the router's index with the blocks that engines and pools hold.
type Difference struct {
	Compared int // residencies on either side
	Lost     int // held, and not in the index
	Phantom  int // in the index, and not held
	// First describes the first few differences, in order.
	First []string
}

// maxShown bounds the differences that are described.
const maxShown = 5

// Diverged returns the number of residencies that only one side has.
func (d *Difference) Diverged() int { return d.Lost + d.Phantom }

// Held returns the residencies (owner, block and tier) of all blocks that engines and pools hold.
func Held(engines []engine.State, pools []AgentPool) map[Residency]bool {
	held := make(map[Residency]bool)
	for i := range engines {
		for group, blocks := range [][]string{engines[i].Blocks, engines[i].WindowBlocks} {
			for _, h := range blocks {
				held[Residency{kv.OwnerWorker.String(), engines[i].WorkerID, engines[i].Rank, h, kv.TierDevice.String(), uint32(group)}] = true
			}
		}
	}
	for _, p := range pools {
		_, numbers := kvevent.NewGroups(p.Groups)
		for _, b := range p.Blocks {
			group := b.Group // 0 in a pool without groups
			if int(group) < len(numbers) {
				group = numbers[group]
			}
			for _, t := range b.Tiers {
				held[Residency{kv.OwnerPool.String(), p.Pool, 0, b.Hash, t, group}] = true
			}
		}
	}
	return held
}

// Believed returns the residencies in the router's index.
func (r *Router) Believed(ctx context.Context) (map[Residency]bool, error) {
	var dump RouterDump
	err := r.Control.Get(ctx, "/v1/dump", &dump)
	return dump.residencies(), err
}

// residencies returns the residencies in a dump of the router's index.
func (d RouterDump) residencies() map[Residency]bool {
	believed := make(map[Residency]bool)
	for i := range d {
		o := d[i].Owner()
		for _, b := range d[i].Blocks() {
			believed[Residency{o.Kind.String(), o.ID, uint32(o.Rank), fmt.Sprintf("%016x", b.Hash), d[i].Tier, d[i].Group()}] = true
		}
	}
	return believed
}

// Compare returns the difference between the held residencies and those that the router believes:
// how many the router lacks, how many only the router has, and a line for each of the first
// maxShown.
func Compare(held, believed map[Residency]bool) Difference {
	d := Difference{Compared: len(held)}
	var all []string
	for r := range held {
		if !believed[r] {
			d.Lost++
			all = append(all, "not known to the router: "+r.String())
		}
	}
	for r := range believed {
		if !held[r] {
			d.Compared++
			d.Phantom++
			all = append(all, "known to the router only: "+r.String())
		}
	}
	slices.Sort(all)
	d.First = all[:min(len(all), maxShown)]
	return d
}
