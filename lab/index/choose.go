package index

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// measureSelect chooses among many workers that all run something.
func measureSelect(ctx context.Context, decisions int) (Figures, error) {
	return selectOf(ctx, selectWorkers, selectHits, decisions)
}

func selectOf(ctx context.Context, workers, some, n int) (Figures, error) {
	s, err := newScheduler()
	if err != nil {
		return nil, err
	}
	members := &index.Members{}
	for i := range workers {
		members.List = append(members.List, index.Member{Worker: worker(i)})
	}
	locals := make([]kv.LocalHash, selectBlocks)
	for i := range locals {
		locals[i] = kv.LocalHash(kv.Digest(kv.SequenceHash(i), kv.TierHost))
	}
	seq := kv.AppendSequence(nil, locals)
	if err := occupy(ctx, s, members, seq); err != nil {
		return nil, err
	}
	request := schedule.Request{
		ID: "measured", Tokens: selectBlocks * benchBlockTokens, BlockSize: benchBlockTokens, Sequence: seq,
		Members: members, TrackPrefill: true, ExpectedOutput: 256,
	}
	f, all := make(Figures), begin()
	for _, c := range []struct {
		figure string
		hits   int
		book   bool
	}{{figNoHits, 0, false}, {figSomeHits, some, false}, {figAllHits, workers, false}, {figBooked, some, true}} {
		request.Hits, request.Book = hitsOn(c.hits, workers), c.book
		ns, allocated, err := timeChoices(ctx, s, &request, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.figure, err)
		}
		f[c.figure] = quantiles(ns, 0.5)[0]
		if c.figure == figNoHits || c.figure == figSomeHits {
			f[figP50] = max(f[figP50], f[c.figure])
			f[figDecisionMB] = max(f[figDecisionMB], allocated/float64(n))
		}
	}
	maps.Copy(f, all.end())
	return f, nil
}

// hitsOn gives so many of the workers, spread evenly, up to 31 blocks.
func hitsOn(some, workers int) []index.Hit {
	var hits []index.Hit
	for i := range some {
		hits = append(hits, index.Hit{Member: int32(i * workers / some), Hits: index.Hits{kv.TierDevice: uint32(1 + i%31)}})
	}
	return hits
}

// occupy gives each worker one to four requests of several sizes. One in a hundred
// runs the prompt seq itself, so that its blocks are shared.
func occupy(ctx context.Context, s *schedule.Scheduler, members *index.Members, seq []kv.SequenceHash) error {
	for i, m := range members.List {
		for k := range 1 + i%4 {
			blocks := 1 + (31*i+k)%127
			r := schedule.Request{
				ID: fmt.Sprint(i, "/", k), Book: true, Tokens: blocks * benchBlockTokens, BlockSize: benchBlockTokens,
				Members: members, TrackPrefill: true, Pinned: &m.Worker,
			}
			if i%100 == 0 {
				r.Sequence = seq[:min(blocks, len(seq))]
			} else {
				local := kv.LocalHash(kv.Digest(kv.SequenceHash(4*i+k), kv.TierDisk))
				r.Sequence = kv.AppendSequence(nil, []kv.LocalHash{local, local + 1, local + 2})
			}
			if _, err := s.Schedule(ctx, &r); err != nil {
				return fmt.Errorf("occupy worker %s: %w", m.Worker, err)
			}
		}
	}
	return nil
}

// timeChoices times n choices in nanoseconds, and says how many megabytes they
// allocated together. A booked request is freed again.
func timeChoices(ctx context.Context, s *schedule.Scheduler, r *schedule.Request, n int) (ns []uint32, allocated float64, err error) {
	var m mark
	warm := min(n, warmDecisions)
	for i := range n + warm {
		if i == warm {
			ns = make([]uint32, 0, n)
			m = begin()
		}
		start := time.Now()
		if _, err := s.Schedule(ctx, r); err != nil {
			return nil, 0, err
		}
		if r.Book {
			s.Free(r.ID)
		}
		ns = append(ns, since(start))
	}
	return ns, m.end()[figAlloc], nil
}
