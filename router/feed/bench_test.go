package feed

import (
	"bytes"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
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
