package index

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

const (
	// minBusyRounds is the least number of times that the second half of a log is
	// applied.
	minBusyRounds = 3
	// maxLatencies bounds the latencies of one part.
	maxLatencies = 1 << 22
)

// errOneProcessor says that a reader cannot run beside a writer.
var errOneProcessor = errors.New("a reader beside a writer needs two processors, and this process has one")

// halves splits the log in the middle of its records, and returns the events of both halves and
// the queries of the second.
func (r *replay) halves() (first, second []kvevent.RouterEvent, queries [][]kv.LocalHash) {
	events, asked := 0, 0
	for _, n := range r.order[:len(r.order)/2] {
		if n < 0 {
			asked++
		} else {
			events++
		}
	}
	return r.events[:events], r.events[events:], r.queries[asked:]
}

// rounds fills an empty index with the first half of the log and has round apply the second half,
// again and again until the second halves took atLeast. It returns how many blocks their events
// name, and how long they took.
func (r *replay) rounds(ctx context.Context, atLeast time.Duration, round func(x *index.Index, second []kvevent.RouterEvent) error) (blocks int, took time.Duration, err error) {
	if runtime.GOMAXPROCS(0) < 2 {
		return 0, 0, errOneProcessor
	}
	first, second, _ := r.halves()
	named := 0
	for i := range second {
		named += second[i].NumBlocks()
	}
	for n := 0; n < minBusyRounds || took < atLeast; n++ {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		x, err := newIndex(r.log.Header().Engines)
		if err != nil {
			return 0, 0, err
		}
		if err := apply(x, first); err != nil {
			return 0, 0, err
		}
		runtime.GC()
		start := time.Now()
		if err := round(x, second); err != nil {
			return 0, 0, err
		}
		took += time.Since(start)
		blocks += named
	}
	return blocks, took, nil
}

// measureBusy returns the times of lookups while another goroutine applies the second half of the
// log. It checks the answers after each round.
func (r *replay) measureBusy(ctx context.Context, atLeast time.Duration) (Figures, error) {
	_, _, queries := r.halves()
	if len(queries) == 0 {
		return nil, fmt.Errorf("op log: its second half has no query")
	}
	var matches index.Matches
	ns := make([]uint32, 0, maxLatencies)
	m := begin()
	blocks, took, err := r.rounds(ctx, atLeast, func(x *index.Index, second []kvevent.RouterEvent) error {
		var done atomic.Bool
		failed := make(chan error, 1)
		go func() {
			defer done.Store(true)
			failed <- apply(x, second)
		}()
		for i := 0; !done.Load(); i++ {
			start := time.Now()
			x.Match(&matches, queries[i%len(queries)], index.Continuation)
			if len(ns) < cap(ns) {
				ns = append(ns, since(start))
			}
		}
		if err := <-failed; err != nil {
			return err
		}
		return r.checkFinal(x, &matches)
	})
	if err != nil {
		return nil, err
	}
	f := m.end()
	f.latencies("", ns)
	f[figMops] = float64(blocks) / took.Seconds() / 1e6
	return f, nil
}

// checkFinal asks all queries of the log after its last record, and checks the sums of the
// answers against the log's.
func (r *replay) checkFinal(x *index.Index, matches *index.Matches) error {
	var got sums
	for _, q := range r.queries {
		x.Match(matches, q, index.Continuation)
		got.add(matches)
	}
	a := r.log.Header().Answers
	return got.check("queries after the last record", a.FinalScore, a.FinalBest)
}

const (
	// probeEvery is the least number of events between two probes.
	probeEvery = 16
	// lostProbe bounds a probe. A longer one ends the run.
	lostProbe = 10 * time.Second
)

// probe passes a block from the writer to the reader, who looks for it. One probe is
// under way at a time.
type probe struct {
	// number is the probe that is being applied, seen the last one found. at is the
	// start of number, in nanoseconds since begun.
	number, seen atomic.Uint64
	at           atomic.Int64
	begun        time.Time
	done         atomic.Bool
}

// local returns the content of a probe. No log has it.
func (p *probe) local(number uint64) kv.LocalHash {
	return kv.LocalHash(kv.Digest(kv.SequenceHash(number), kv.TierExternal))
}

// measureVisible measures the time until a reader finds a block, while the second half
// of the log is applied. A separate worker holds the probes.
func (r *replay) measureVisible(ctx context.Context, atLeast time.Duration) (Figures, error) {
	ns := make([]uint32, 0, maxLatencies)
	m := begin()
	engines := r.log.Header().Engines
	blocks, took, err := r.rounds(ctx, atLeast, func(x *index.Index, second []kvevent.RouterEvent) error {
		if err := x.SetMember(worker(engines), 0, true); err != nil {
			return err
		}
		p := &probe{begun: time.Now()}
		failed := make(chan error, 1)
		go func() {
			defer p.done.Store(true)
			failed <- p.applyBetween(x, second, kv.WorkerOwner(worker(engines)))
		}()
		var lost error
		if ns, lost = p.watch(x, ns); lost != nil {
			return errors.Join(lost, <-failed)
		}
		return <-failed
	})
	if err != nil {
		return nil, err
	}
	if len(ns) == 0 {
		return nil, fmt.Errorf("no probe was found: the second half of the log has less than %d events", probeEvery)
	}
	f := m.end()
	f.latencies("", ns)
	f[figMops] = float64(blocks) / took.Seconds() / 1e6
	return f, nil
}

// applyBetween applies events, and between them probes: blocks that watch looks for. The next
// probe comes when watch has seen the last one, which is then removed.
func (p *probe) applyBetween(x *index.Index, events []kvevent.RouterEvent, owner kv.Owner) error {
	id, number, last := uint64(0), uint64(0), 0
	block, gone := make([]kvevent.StoredBlock, 1), make([]kv.SequenceHash, 1)
	for i := range events {
		if i-last >= probeEvery && p.seen.Load() == number {
			last = i
			if number > 0 {
				id++
				gone[0] = block[0].Hash
				if err := x.Apply(&kvevent.RouterEvent{Owner: owner, ID: id, Kind: kvevent.Removed, Removed: gone}); err != nil {
					return err
				}
			}
			id++
			number++
			block[0] = kvevent.StoredBlock{Hash: kv.SequenceHash(p.local(number)), Local: p.local(number)}
			p.at.Store(int64(time.Since(p.begun)))
			p.number.Store(number)
			if err := x.Apply(&kvevent.RouterEvent{Owner: owner, ID: id, Kind: kvevent.Stored, Blocks: block}); err != nil {
				return err
			}
		}
		if err := x.Apply(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

// watch looks for each probe until it finds the probe, and appends to ns the time in nanoseconds
// since the probe was applied. It returns when the writer has ended.
func (p *probe) watch(x *index.Index, ns []uint32) ([]uint32, error) {
	var matches index.Matches
	prompt := make([]kv.LocalHash, 1)
	for {
		// done is read first, so that the last probe counts when the writer has ended.
		done := p.done.Load()
		number := p.number.Load()
		if number == p.seen.Load() {
			if done {
				return ns, nil
			}
			continue
		}
		start := p.begun.Add(time.Duration(p.at.Load()))
		prompt[0] = p.local(number)
		for {
			if x.Match(&matches, prompt, index.Continuation); len(matches.Hits) > 0 {
				break
			}
			if time.Since(start) > lostProbe {
				return ns, fmt.Errorf("block %#x was not found within %s after it was applied", prompt[0], lostProbe)
			}
		}
		if len(ns) < cap(ns) {
			ns = append(ns, since(start))
		}
		p.seen.Store(number)
	}
}
