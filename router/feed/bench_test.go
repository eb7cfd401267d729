package feed

import (
	"bytes"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// BenchmarkSnapshotOfAMillionBlocks: 16 owners with 65,536 blocks each, to memory
// and back.
func BenchmarkSnapshotOfAMillionBlocks(b *testing.B) {
	now := time.Now()
	fresh := func() *Set { return freshFeeds(b) }
	full := fresh()
	for id := range uint64(16) {
		p := sourcetest.NewPublisher(10+id, sourcetest.WorkerOwner(id+1), 0)
		full.Frame(p.Announce(), now)
		for n := range uint64(128) {
			e := kvevent.RouterEvent{Owner: p.Meta.Owner, Kind: kvevent.Stored, ID: n + 1}
			above, inside := kv.SequenceHash(0), false
			for i := range uint64(512) {
				l := kv.LocalHash(id<<32 | n<<16 | i)
				above, inside = chain(above, inside, l), true
				e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: above, Local: l})
			}
			full.Frame(source.Frame{Kind: source.FrameEvents, Data: kvevent.AppendEnvelope(nil, &kvevent.Envelope{
				PublisherID: 10 + id, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})}, now)
		}
	}
	var data bytes.Buffer
	b.Run("save", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			data.Reset()
			if err := full.save(&data); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(data.Len()), "snapshot-bytes")
	})
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := fresh()
			if _, feeds, err := s.restore(bytes.NewReader(data.Bytes()), now); err != nil || feeds != 16 {
				b.Fatal(feeds, err)
			}
		}
	})
}

// BenchmarkEvents applies stores and removals of 64 blocks as the router gets them, without and with a
// memory for misses. A pass stores 64 blocks and removes 64 others.
func BenchmarkEvents(b *testing.B) {
	for name, blocks := range map[string]int{"off": 0, "on": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			models := &testModels{open: make(map[ModelKey]*testModel)}
			if blocks > 0 {
				models.memory = miss.NewMemory(blocks, time.Now())
			}
			s := New(Options{Models: models, Log: zap.NewNop(), Timeout: time.Hour, KeepAbsent: time.Minute, MaxFeeds: 1, MaxQueries: 1})
			p := sourcetest.NewPublisher(1, sourcetest.WorkerOwner(1), 0)
			now := time.Now()
			s.Frame(p.Announce(), now)
			const window = 64
			frames := make([]source.Frame, 0, 2*(b.N+window))
			prompt := func(n int) []uint32 {
				ids := make([]uint32, 64)
				for i := range ids {
					ids[i] = uint32(n*64 + i)
				}
				return sourcetest.Tokens(ids...)
			}
			for n := range b.N + window {
				frames = append(frames, p.Store(kv.TierDevice, prompt(n)))
				if n >= window {
					frames = append(frames, source.Frame{Kind: source.FrameEvents, Data: p.Add(kvevent.Removed, kv.TierDevice, prompt(n-window), 0)})
				}
			}
			for _, f := range frames[:window] {
				s.Frame(f, now)
			}
			frames = frames[window:]
			b.ReportAllocs()
			b.ResetTimer()
			for _, f := range frames {
				s.Frame(f, now)
			}
		})
	}
}
