package registry

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const million = 1_000_000

// BenchmarkFindAll looks a sequence of 1,000 blocks up among ten million, a
// different one each time.
func BenchmarkFindAll(b *testing.B) {
	r := New()
	chain(r, 0, 10*million)
	keys, ids := make([]kv.StoredKey, 1000), make([]ID, 1000)
	random := rand.New(rand.NewPCG(1, 1))
	for _, bench := range []struct {
		name string
		key  func(first, i int) kv.StoredKey
	}{
		{"chain", func(first, i int) kv.StoredKey { return spread(first + i) }},
		{"scattered", func(int, int) kv.StoredKey { return spread(random.IntN(10 * million)) }},
		{"absent", func(first, i int) kv.StoredKey { return spread(first + i + 10*million) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				first := random.IntN(10*million - len(keys))
				for i := range keys {
					keys[i] = bench.key(first, i)
				}
				b.StartTimer()
				r.FindAll(keys, ids)
			}
		})
	}
}

// BenchmarkOccupy is one block more or one block less with a million there.
func BenchmarkOccupy(b *testing.B) {
	r := New()
	chain(r, 0, million)
	next := million
	for b.Loop() {
		id, _ := r.Occupy(spread(next), true, spread(next-1), Host, 1)
		r.Vacate(id, Host)
		next++
	}
}

// BenchmarkGrow is the life of a registry up to ten million blocks, and the
// slowest calls on the way there. One call in six hundred splits a segment; the
// very worst are those during which the machine ran something else.
func BenchmarkGrow(b *testing.B) {
	took := make([]time.Duration, 10*million)
	for b.Loop() {
		r := New()
		for i := range took {
			key, parent := spread(i), spread(i-1)
			start := time.Now()
			r.Occupy(key, i > 0, parent, Host, Ref(i))
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		for _, q := range []struct {
			slower int
			name   string
		}{{5 * million, "p50-ns"}, {million / 10, "p99-ns"}, {1000, "p99.99-ns"}, {1, "max-ns"}} {
			b.ReportMetric(float64(took[len(took)-q.slower]), q.name)
		}
		b.ReportMetric(float64(r.Bytes())/(10*million), "B/block")
	}
}
