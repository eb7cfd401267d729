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
	// minBusyRounds is how often the second half of a log is applied at least.
	minBusyRounds = 3
	// maxLatencies bounds the latencies that are kept of one part.
	maxLatencies = 1 << 22
)

// errOneProcessor is returned where a reader cannot run beside a writer.
var errOneProcessor = errors.New("a reader beside a writer needs two processors, and this process has one")

// halves splits a log in the middle of its records: the events of the first half,
// those of the second, and the queries of the second.
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

// rounds fills an index with the first half of the log again and again and lets
// round apply the second half, until that has taken atLeast. It returns the blocks
// that the second halves named, and the time that they took.
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

// measureBusy times lookups while the second half is applied.
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

// checkFinal asks all queries after the last record and checks the sums.
func (r *replay) checkFinal(x *index.Index, matches *index.Matches) error {
	var got sums
	for _, q := range r.queries {
		x.Match(matches, q, index.Continuation)
		got.add(matches)
	}
	a := r.log.Header().Answers
	return got.check("queries after the last record", a.FinalScore, a.FinalBest)
}
