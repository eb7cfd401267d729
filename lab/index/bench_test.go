package index

import (
	"testing"

	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/router/index"
)

// benchReplay returns a log that fits a cache, as it is made or unfriendly.
func benchReplay(b *testing.B, unfriendly bool) *replay {
	b.Helper()
	o := loggen.Options{Seed: 1, Engines: 16, Pool: 4096, Requests: 1500, Affinity: 0.5}
	if unfriendly {
		o = o.Unfriendly()
	}
	r, err := openReplay(tinyLog(b, o, nil))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.log.Close() })
	return r
}

func shapes(b *testing.B, run func(b *testing.B, r *replay)) {
	b.Helper()
	for name, unfriendly := range map[string]bool{"plain": false, "unfriendly": true} {
		b.Run(name, func(b *testing.B) { run(b, benchReplay(b, unfriendly)) })
	}
}

// BenchmarkApply applies all events of a log to an empty index in each iteration.
func BenchmarkApply(b *testing.B) {
	shapes(b, func(b *testing.B, r *replay) {
		h := r.log.Header()
		b.ReportAllocs()
		for b.Loop() {
			x, err := newIndex(h.Engines)
			if err != nil {
				b.Fatal(err)
			}
			if err := apply(x, r.events); err != nil {
				b.Fatal(err)
			}
			drain(x)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(h.Stored+h.Removed), "ns/block")
	})
}

// BenchmarkMatch asks one query of a log after the other, against its last state.
func BenchmarkMatch(b *testing.B) {
	shapes(b, func(b *testing.B, r *replay) {
		x, err := newIndex(r.log.Header().Engines)
		if err != nil {
			b.Fatal(err)
		}
		if err := apply(x, r.events); err != nil {
			b.Fatal(err)
		}
		var matches index.Matches
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			x.Match(&matches, r.queries[n%len(r.queries)], index.Continuation)
		}
	})
}
