package dynamo

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
)

// wire hands frames to a router and is asked nothing.
type wire struct{ frames chan source.Frame }

func (w *wire) Frames() <-chan source.Frame { return w.frames }
func (w *wire) Stats() source.Stats         { return source.Stats{Connected: true} }

func (w *wire) Query(context.Context, uint64, kvevent.QueryRequest) (*source.Answer, error) {
	return nil, errors.New("nobody answers")
}

// opaque is a worker whose engine has names of its own for the same content.
type opaque struct {
	*fakeWorker
	rank   *rank
	naming kv.LocalHash
}

func newOpaque(id kv.WorkerID, room *budget, counters *Counters) *opaque {
	w := kv.Worker{ID: id}
	return &opaque{
		fakeWorker: newFakeWorker(w, 1), naming: kv.LocalHash(id * 1_000_003),
		rank: &rank{worker: w, model: "m", blockSize: 4, publisher: uint64(id) + 10, table: newTable(room, counters)},
	}
}

// extend stores blocks below a block of this worker, 0 for none, under this
// engine's names.
func (o *opaque) extend(tier kv.Tier, parent kv.SequenceHash, locals []kv.LocalHash) kvevent.RouterEvent {
	var names []kv.SequenceHash
	above := parent
	for _, l := range locals {
		above = kv.Chain(kv.Chain(above, l), o.naming)
		names = append(names, above)
	}
	return o.storeNamed(tier, parent, names, locals)
}

// step draws a change: mostly stores, of few contents, so that the workers have
// much in common; or the removal of a leaf, by this engine's name.
func (o *opaque) step(rng *rand.Rand) kvevent.RouterEvent {
	tier := []kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierHost, kv.TierDisk}[rng.IntN(4)]
	if leaves := o.leavesOn(tier); len(leaves) > 0 && rng.IntN(3) == 0 {
		return o.remove(tier, leaves[rng.IntN(len(leaves))])
	}
	parents := append([]kv.SequenceHash{0}, o.leaves()...)
	locals := make([]kv.LocalHash, 1+rng.IntN(3))
	for i := range locals {
		locals[i] = kv.LocalHash(1 + rng.IntN(2))
	}
	return o.extend(tier, parents[rng.IntN(len(parents))], locals)
}

// frames is an event on its way to the router, and an announcement after it.
func (o *opaque) frames(e kvevent.RouterEvent) []source.Frame {
	out := o.rank.publish(nil, o.rank.table.apply(nil, &e))
	return append(out, o.rank.announcement(kvevent.HealthExact))
}

// TestOpaqueNamesOfEqualContentStayExact: workers whose engines call equal blocks
// by different names, with another algorithm or seed, are followed exactly: what
// is stored below such names counts, in every tier, and what is removed by them is
// gone. The router's digests agree with the ranks' all along.
func TestOpaqueNamesOfEqualContentStayExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := &wire{frames: make(chan source.Frame)}
		r, err := router.New(router.Options{}, link)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		defer running.Wait()
		defer cancel()
		rng := rand.New(rand.NewPCG(3, 5))
		room, counters := &budget{free: 10_000}, new(Counters)
		workers := []*opaque{newOpaque(1, room, counters), newOpaque(2, room, counters), newOpaque(3, room, counters)}
		for _, w := range workers {
			link.frames <- w.rank.announcement(kvevent.HealthExact)
		}
		for range 600 {
			w := workers[rng.IntN(len(workers))]
			for _, f := range w.frames(w.step(rng)) {
				link.frames <- f
			}
			synctest.Wait()
			for _, f := range r.Feeds() {
				if f.Health != kvevent.HealthExact {
					t.Fatalf("%s is %s: the index and the rank differ", f.Owner, f.Health)
				}
			}
		}
		for _, w := range workers {
			w.check(t, r)
		}
		if *counters != (Counters{}) {
			t.Errorf("counters %+v, want none", *counters)
		}
	})
}

// check compares what the router has of a worker with what the worker has.
func (o *opaque) check(t *testing.T, r *router.Router) {
	t.Helper()
	got := make(held)
	for _, owner := range routertest.Dump(r) {
		if owner.Owner != kv.WorkerOwner(o.worker) {
			continue
		}
		for _, b := range owner.Blocks {
			for _, tier := range kv.Tiers {
				if b.Tiers.Has(tier) {
					got[pair{b.Hash, tier}] = true
				}
			}
		}
	}
	if want := o.truth(); len(want) == 0 || !maps.Equal(got, want) {
		t.Errorf("worker %s: the router has %d pairs, the worker %d", o.worker, len(got), len(want))
	}
}
