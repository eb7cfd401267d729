package consolidator

import (
	"runtime"
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/mirror"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// wireSink encodes what it gets as a publisher does.
type wireSink struct {
	env    kvevent.Envelope
	buf    []byte
	blocks uint64
}

func (w *wireSink) Publish(events []kvevent.RouterEvent) {
	for i := range events {
		w.blocks += uint64(events[i].NumBlocks())
	}
	w.env.PublisherID, w.env.Events = 1<<40, events
	w.buf = kvevent.AppendEnvelope(w.buf[:0], &w.env)
	w.env.Sequence++
}

// wireLoad is the encoded stream of an engine whose cache of a fixed size is full:
// each batch stores sequences and evicts as many old blocks.
type wireLoad struct {
	payloads [][]byte
	blocks   int // per turn over all payloads
}

const wireBlockSize = 16

// newWireLoad makes batches that, applied in turn again and again, keep resident
// blocks: batch i removes what batch i stored a turn ago.
func newWireLoad(resident, perBatch int) *wireLoad {
	l := &wireLoad{}
	next := uint64(0)
	hash := func(n uint64) kv.EngineHash { return kv.EngineHash(mix(n + 1)) }
	for next < uint64(resident) {
		b := engineevent.Batch{Timestamp: 1e9, HasRank: true}
		for run := 0; run < perBatch; run += 32 {
			stored := engineevent.Event{Kind: kvevent.Stored, BlockSize: wireBlockSize, Medium: "GPU", SpecKind: "full_attention"}
			for range 32 {
				stored.BlockHashes = append(stored.BlockHashes, hash(next))
				for j := range uint64(wireBlockSize) {
					stored.Tokens = append(stored.Tokens, uint32(mix(next*wireBlockSize+j)%128000))
				}
				next++
			}
			for i := range stored.BlockHashes {
				removed := engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", BlockHashes: stored.BlockHashes[31-i : 32-i]}
				b.Events = append(b.Events, removed)
			}
			b.Events = append(b.Events, stored)
		}
		l.payloads = append(l.payloads, engineevent.AppendBatch(nil, &b))
		l.blocks += 2 * perBatch
	}
	return l
}

// wireRank is decoder, mirror, stream and encoder of one rank.
type wireRank struct {
	dec    engineevent.Decoder
	batch  engineevent.Batch
	cache  *mirror.Cache
	stream *residency.Stream
	sink   wireSink
}

func newWireRank() *wireRank {
	w := &wireRank{}
	w.stream = residency.NewStream(testOwner, &w.sink)
	w.cache = mirror.New(mirror.Config{Stream: w.stream, BlockSize: wireBlockSize, MaxBlocks: 8 << 20, Counters: new(mirror.Counters)})
	return w
}

func (w *wireRank) apply(t testing.TB, payload []byte) {
	if err := w.dec.Decode(payload, &w.batch); err != nil {
		t.Fatal(err)
	}
	w.cache.Apply(&w.batch)
	w.stream.Flush()
}

// BenchmarkWireToWire: engine payloads in, envelopes out, with a cache that is
// full, so that each stored block evicts another. Stored and removed blocks count
// alike.
func BenchmarkWireToWire(b *testing.B) {
	for name, resident := range map[string]int{"resident=32Ki": 32 << 10, "resident=1Mi": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			l, w := newWireLoad(resident, 256), newWireRank()
			for range 2 {
				for _, p := range l.payloads {
					w.apply(b, p)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			blocks, i := 0, 0
			for b.Loop() {
				w.apply(b, l.payloads[i])
				i = (i + 1) % len(l.payloads)
				blocks += l.blocks / len(l.payloads)
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(blocks), "allocs/block")
		})
	}
}

// BenchmarkBytesPerBlock: what both tables of a rank cost on the heap.
func BenchmarkBytesPerBlock(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(bytesPerBlock(b, 1<<20), "bytes/block")
	}
}

func bytesPerBlock(t testing.TB, n int) float64 {
	l := newWireLoad(n, 256)
	before := heap()
	w := newWireRank()
	for _, p := range l.payloads {
		w.apply(t, p)
	}
	after := heap()
	blocks := w.stream.Status().Blocks
	runtime.KeepAlive(w)
	runtime.KeepAlive(l)
	return float64(after-before) / float64(blocks)
}

// TestTrackedBlocksAreSmall: wherever in its cycle of growth an index is, both tables of a rank together need at
// most 64 bytes per block.
func TestTrackedBlocksAreSmall(t *testing.T) {
	for _, n := range []int{150_000, 165_000, 180_000} {
		if got := bytesPerBlock(t, n); got > 64 {
			t.Errorf("%d blocks: %.1f bytes each", n, got)
		} else {
			t.Logf("%d blocks: %.1f bytes each", n, got)
		}
	}
}

// TestWireToWireAllocatesNothingPerBlock: in a steady state, nothing is allocated
// per block or event.
func TestWireToWireAllocatesNothingPerBlock(t *testing.T) {
	l, w := newWireLoad(16<<10, 256), newWireRank()
	turn := func() {
		for _, p := range l.payloads {
			w.apply(t, p)
		}
	}
	turn()
	turn()
	if got := testing.AllocsPerRun(5, turn) / float64(l.blocks); got > 0.0001 {
		t.Errorf("%v allocations per block", got)
	}
	if st := w.stream.Status(); st.Blocks != 16<<10 || st.Health != kvevent.HealthExact {
		t.Errorf("%d blocks, health %s", st.Blocks, st.Health)
	}
}

// BenchmarkSnapshot: how long it takes to make the events of a snapshot.
func BenchmarkSnapshot(b *testing.B) {
	l, w := newWireLoad(1<<20, 256), newWireRank()
	for _, p := range l.payloads {
		w.apply(b, p)
	}
	for b.Loop() {
		w.stream.Snapshot()
	}
	b.ReportMetric(float64(b.N)*float64(w.stream.Status().Blocks)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkCheckpoint: how long a rank stands still while its state is copied.
func BenchmarkCheckpoint(b *testing.B) {
	l, w := newWireLoad(1<<20, 256), newWireRank()
	for _, p := range l.payloads {
		w.apply(b, p)
	}
	var buf []byte
	for b.Loop() {
		buf = w.cache.AppendCheckpoint(buf[:0], checkpoint.ID{Worker: kv.Worker{ID: 7}}, sequence.State{})
	}
	b.SetBytes(int64(len(buf)))
}
