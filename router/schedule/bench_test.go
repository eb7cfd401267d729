package schedule

import (
	"fmt"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// fleet is n workers of one rank each, numbered from 1.
func fleet(n int) *index.Members {
	m := &index.Members{List: make([]index.Member, n)}
	for i := range m.List {
		m.List[i].Worker.ID = kv.WorkerID(i + 1)
	}
	return m
}

// BenchmarkSchedule is one decision that is not booked, over workers that all
// run requests: a prompt of 128 blocks of 16 tokens, a hundredth of the workers
// (or all) have part of it, as many run requests that share its prefix.
func BenchmarkSchedule(b *testing.B) {
	for _, workers := range []int{2, 32, 1024, 10_000} {
		for _, temperature := range []float64{0, 0.7} {
			for _, all := range []bool{false, true} {
				b.Run(fmt.Sprintf("workers=%d/temperature=%v/all-hit=%v", workers, temperature, all), func(b *testing.B) {
					benchmarkSchedule(b, workers, temperature, all)
				})
			}
		}
	}
}

func benchmarkSchedule(b *testing.B, workers int, temperature float64, all bool) {
	config := DefaultConfig()
	config.Temperature, config.Seed = temperature, 1
	s, err := New(Options{Config: config})
	if err != nil {
		b.Fatal(err)
	}
	sequence := make([]kv.SequenceHash, 128)
	for i := range sequence {
		sequence[i] = kv.SequenceHash(i + 1)
	}
	members := fleet(workers)
	r := &Request{Tokens: 2048, BlockSize: 16, Sequence: sequence, Members: members, TrackPrefill: true}
	for i, m := range members.List {
		own := []kv.SequenceHash{kv.SequenceHash(1<<32 + i)}
		if all || i%100 == 0 {
			own = sequence[:64]
			r.Hits = append(r.Hits, index.Hit{Member: int32(i), Hits: hits(uint32(i%100), 10, 5, 1)})
		}
		load := &Request{ID: fmt.Sprint(i), Tokens: 1000 + i*37%5000, BlockSize: 16, Sequence: own, TrackPrefill: true}
		if err := s.Add(load, m.Worker, 0); err != nil {
			b.Fatal(err)
		}
	}
	ctx := b.Context()
	if _, err := s.Schedule(ctx, r); err != nil { // makes the memory of a decision
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Schedule(ctx, r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRequest is the whole of a request on 1,024 workers: booked, its prefill
// completed, and freed.
func BenchmarkRequest(b *testing.B) {
	s, err := New(Options{Config: DefaultConfig()})
	if err != nil {
		b.Fatal(err)
	}
	r := &Request{ID: "x", Book: true, Tokens: 2048, BlockSize: 16, Members: fleet(1024), TrackPrefill: true}
	for i := range 128 {
		r.Sequence = append(r.Sequence, kv.SequenceHash(i+1))
	}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Schedule(ctx, r); err != nil {
			b.Fatal(err)
		}
		if err := s.MarkPrefillCompleted("x"); err != nil {
			b.Fatal(err)
		}
		s.Free("x")
	}
}

// pin returns a pin to a worker.
func pin(w kv.Worker) *kv.Worker { return &w }
