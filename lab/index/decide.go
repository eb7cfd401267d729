package index

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Names of figures of the parts score and select.
const (
	figDecisionMs = "decision_ms"  // chain of hashes, match and choice, median
	figDecisionMB = "decision_mb"  // allocated for each
	figHashMs     = "hash_ms"      // the prompt's tokens hashed, median
	figMatchMs    = "match_ms"     // median
	figNoHits     = "no_hits_us"   // choice with no hits, median
	figSomeHits   = "some_hits_us" // choice with hits on a tenth of the workers
	figAllHits    = "all_hits_us"  // choice with hits on all workers
	figBooked     = "booked_us"    // choice, booking and release
)

const (
	benchBlockTokens = 16
	// The prompt of the part score, and the number of workers that hold it.
	scoreBlocks, scoreWorkers = 15_000, 96
	// The workers of the part select, the number of them with hits in one case, and the
	// blocks of the prompt.
	selectWorkers, selectHits, selectBlocks = 10_000, 1_000, 128
	// warmDecisions come before the timed decisions, at most as many as those.
	warmDecisions = 20
	storeChunk    = 128
)

// measureScore decides for a long prompt that every worker holds and runs.
func measureScore(ctx context.Context, decisions int) (Figures, error) {
	return scoreOf(ctx, scoreBlocks, scoreWorkers, decisions)
}

// scoreOf measures n decisions for a prompt of that many blocks which every one of the workers
// holds and runs: the time to hash it, to match it, and to decide. The first decisions do not
// count.
func scoreOf(ctx context.Context, blocks, workers, n int) (Figures, error) {
	tokens := make([]uint32, blocks*benchBlockTokens)
	for i := range tokens {
		tokens[i] = uint32(kv.Digest(kv.SequenceHash(i), kv.TierDevice))
	}
	d, err := newDecision(ctx, workers, tokens)
	if err != nil {
		return nil, err
	}
	for i := range workers {
		if err := d.holdAndRun(i); err != nil {
			return nil, err
		}
	}
	var hash, match, whole []uint32
	var m mark
	warm := min(n, warmDecisions)
	for i := range n + warm {
		if i == warm {
			hash, match, whole = make([]uint32, 0, n), make([]uint32, 0, n), make([]uint32, 0, n)
			m = begin()
		}
		times, err := d.decide()
		if err != nil {
			return nil, err
		}
		hash, match, whole = append(hash, times.hash), append(match, times.match), append(whole, times.whole)
	}
	f := m.end()
	f[figDecisionMB] = f[figAlloc] / float64(n)
	for name, ns := range map[string][]uint32{figHashMs: hash, figMatchMs: match, figDecisionMs: whole} {
		f[name] = quantiles(ns, 0.5)[0] / 1e3
	}
	f.latencies("", whole)
	return f, nil
}

// decision is a prompt, an index and a scheduler.
type decision struct {
	ctx       context.Context
	tokens    []uint32
	index     *index.Index
	scheduler *schedule.Scheduler
	hasher    kv.Hasher
	locals    []kv.LocalHash
	seq       []kv.SequenceHash
	matches   index.Matches
	request   schedule.Request
}

// newDecision returns an index and a scheduler for that many workers, and the hashes of the
// prompt in tokens.
func newDecision(ctx context.Context, workers int, tokens []uint32) (*decision, error) {
	x, err := newIndex(workers)
	if err != nil {
		return nil, err
	}
	s, err := newScheduler()
	if err != nil {
		return nil, err
	}
	d := &decision{ctx: ctx, tokens: tokens, index: x, scheduler: s}
	d.locals = d.hasher.AppendLocals(nil, tokens, benchBlockTokens, kv.HashSeed)
	d.seq = kv.AppendSequence(nil, d.locals)
	return d, nil
}

func newScheduler() (*schedule.Scheduler, error) {
	o := schedule.Options{Config: schedule.DefaultConfig()}
	o.Load.MaxRequests = 1 << 20
	return schedule.New(o)
}

// holdAndRun has the worker of that number hold the prompt in the index, and run a request for it
// in the scheduler.
func (d *decision) holdAndRun(engine int) error {
	owner, id := kv.WorkerOwner(worker(engine)), uint64(0)
	for at := 0; at < len(d.seq); at += storeChunk {
		end := min(at+storeChunk, len(d.seq))
		id++
		e := kvevent.RouterEvent{Owner: owner, ID: id, Kind: kvevent.Stored}
		for i := at; i < end; i++ {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: d.seq[i], Local: d.locals[i]})
		}
		if at > 0 {
			e.Parent, e.HasParent = d.seq[at-1], true
		}
		if err := d.index.Apply(&e); err != nil {
			return err
		}
	}
	w := worker(engine)
	r := schedule.Request{
		ID: w.String(), Book: true, Tokens: len(d.tokens), BlockSize: benchBlockTokens, Sequence: d.seq,
		Members: d.index.Members(), TrackPrefill: true, Pinned: &w,
	}
	_, err := d.scheduler.Schedule(d.ctx, &r)
	return err
}

// stages are times of one decision in nanoseconds: hashing the tokens, the match, and
// everything after the LocalHashes.
type stages struct{ hash, match, whole uint32 }

// decide makes one decision and returns the time of each stage in nanoseconds. It checks that
// every worker has the whole prompt.
func (d *decision) decide() (stages, error) {
	var t stages
	start := time.Now()
	d.locals = d.hasher.AppendLocals(d.locals[:0], d.tokens, benchBlockTokens, kv.HashSeed)
	t.hash = since(start)
	start = time.Now()
	d.seq = kv.AppendSequence(d.seq[:0], d.locals)
	matching := time.Now()
	d.index.Match(&d.matches, d.locals, index.Continuation)
	t.match = since(matching)
	d.request = schedule.Request{
		Tokens: len(d.tokens), BlockSize: benchBlockTokens, Sequence: d.seq,
		Members: d.matches.Members, Hits: d.matches.Hits, TrackPrefill: true,
	}
	result, err := d.scheduler.Schedule(d.ctx, &d.request)
	t.whole = since(start)
	if err != nil {
		return t, err
	}
	if n := len(d.matches.Members.List); len(d.matches.Hits) != n || result.CachedTokens != len(d.tokens) {
		return t, fmt.Errorf("%d of %d workers have hits and %d tokens are cached, want all and %d",
			len(d.matches.Hits), n, result.CachedTokens, len(d.tokens))
	}
	return t, nil
}

// measureSelect chooses among many workers that all run requests.
func measureSelect(ctx context.Context, decisions int) (Figures, error) {
	return selectOf(ctx, selectWorkers, selectHits, decisions)
}

// selectOf measures n choices among workers with loads, for prompts that no worker holds, some
// workers and all hold. The index takes no part.
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
		if c.figure == figNoHits || c.figure == figSomeHits { // the usual choices make the last line
			f[figP50] = max(f[figP50], f[c.figure])
			f[figDecisionMB] = max(f[figDecisionMB], allocated/float64(n))
		}
	}
	maps.Copy(f, all.end())
	return f, nil
}

// hitsOn returns hits of up to 31 blocks for some of the workers, spread evenly.
func hitsOn(some, workers int) []index.Hit {
	var hits []index.Hit
	for i := range some {
		hits = append(hits, index.Hit{Member: int32(i * workers / some), Hits: index.Hits{kv.TierDevice: uint32(1 + i%31)}})
	}
	return hits
}

// occupy gives each worker one to four requests of several sizes. One worker in a
// hundred runs the prompt seq, so that its blocks are shared.
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

// timeChoices makes n choices for the request r, and returns the time of each in nanoseconds and
// the megabytes that all allocated. It frees booked requests again.
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
