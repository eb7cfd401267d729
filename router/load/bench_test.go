package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// prompt is a chain of blocks that begins with common ones.
func prompt(seed uint64, common, blocks int) []kv.SequenceHash {
	locals := make([]kv.LocalHash, blocks)
	for i := range locals {
		locals[i] = kv.LocalHash(i)
		if i >= common {
			locals[i] += kv.LocalHash(seed << 20)
		}
	}
	return kv.AppendSequence(nil, locals)
}

// loaded is an account of n workers with requests of the given blocks each, the
// first 64 of which are the same for all.
func loaded(b *testing.B, n, requests, blocks int, d time.Duration) (*Account, *index.Members) {
	b.Helper()
	a, err := New(Options{MaxBlocks: 1 << 26})
	if err != nil {
		b.Fatal(err)
	}
	m := &index.Members{}
	for i := range n {
		m.List = append(m.List, index.Member{Worker: kv.Worker{ID: kv.WorkerID(i + 1)}})
	}
	a.Align(m)
	for i := range requests {
		r := Request{
			ID: fmt.Sprint(i), Worker: m.List[i%n].Worker, Sequence: prompt(uint64(i+1), 64, blocks),
			PrefillTokens: 1000, PrefillDuration: d,
		}
		if err := a.Add(&r); err != nil {
			b.Fatal(err)
		}
	}
	return a, m
}

// BenchmarkAddFree books and frees one prompt of 750 blocks.
func BenchmarkAddFree(b *testing.B) {
	for _, c := range []struct {
		name             string
		workers, request int
	}{{"empty", 1, 0}, {"10k workers", 10_000, 20_000}} {
		b.Run(c.name, func(b *testing.B) {
			a, m := loaded(b, c.workers, c.request, 128, 0)
			r := Request{ID: "x", Sequence: prompt(1<<40, 64, 750), PrefillTokens: 1000}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				r.Worker = m.List[i%len(m.List)].Worker
				if err := a.Add(&r); err != nil {
					b.Fatal(err)
				}
				a.Free("x")
			}
		})
	}
}

func BenchmarkAddOutputBlock(b *testing.B) {
	a, _ := loaded(b, 100, 10_000, 128, 0)
	decay := .5
	b.ReportAllocs()
	for b.Loop() {
		if err := a.AddOutputBlock("5000", &decay); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkShared asks for a prompt of 750 blocks over 10,000 workers with two
// requests each: all share its beginning, or nobody has any of it.
func BenchmarkShared(b *testing.B) {
	a, _ := loaded(b, 10_000, 20_000, 128, 0)
	for _, c := range []struct {
		name     string
		sequence []kv.SequenceHash
		want     int
	}{
		{"all share", prompt(7, 64, 750), 10_000},
		{"none shares", prompt(1<<40, 0, 750), 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			var dst []Shared
			b.ReportAllocs()
			for b.Loop() {
				if dst = a.Shared(dst[:0], c.sequence); len(dst) != c.want {
					b.Fatalf("%d share, want %d", len(dst), c.want)
				}
			}
		})
	}
}

// BenchmarkColumns reads the loads of 10,000 workers.
func BenchmarkColumns(b *testing.B) {
	for name, d := range map[string]time.Duration{"unmodelled": 0, "modelled": time.Hour} {
		b.Run(name, func(b *testing.B) {
			a, m := loaded(b, 10_000, 10_000, 1, d)
			b.ReportAllocs()
			for b.Loop() {
				a.Align(m)
				if c := a.Columns(); len(c.Requests) != 10_000 {
					b.Fatal(len(c.Requests))
				}
			}
		})
	}
}

// BenchmarkAlign follows a new list of 10,000 members.
func BenchmarkAlign(b *testing.B) {
	a, m := loaded(b, 10_000, 10_000, 1, 0)
	lists := []*index.Members{{List: m.List}, {List: m.List}}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		a.Align(lists[i%2])
	}
}
