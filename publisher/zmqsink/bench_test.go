package zmqsink

import (
	"runtime"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// sixteen knows every block: sixteen tokens.
type sixteen struct{}

func (sixteen) Describe(h kv.SequenceHash, e *engineevent.Event) bool {
	e.Tokens = e.Tokens[:0]
	for i := range uint32(16) {
		e.Tokens = append(e.Tokens, (uint32(h)+i)%128000)
	}
	e.BlockSize, e.Eagle, e.LoRAName, e.Salt, e.Multimodal = 16, false, "", "", nil
	return true
}

// BenchmarkSink has 64 blocks stored, or removed, per operation: from Publish to the
// socket, with and without somebody who reads it.
func BenchmarkSink(b *testing.B) {
	b.Run("no-subscriber", func(b *testing.B) { benchmarkSink(b, false) })
	b.Run("subscriber", func(b *testing.B) { benchmarkSink(b, true) })
}

func benchmarkSink(b *testing.B, read bool) {
	sink, err := New(Options{Bind: "tcp://127.0.0.1:*", Worker: testWorker, BlockSize: 16, Topic: "kv"}, newStream(), sixteen{})
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	if read {
		readInBackground(b, sink)
	}
	const run = 64
	stored, removed := chainEvent(device, 1, run), removedFrom(device)
	for _, block := range stored.Blocks {
		removed.Removed = append(removed.Removed, block.Hash)
	}
	removed.Owner = stored.Owner
	turn := []*kvevent.RouterEvent{&stored, &removed}
	one := make([]kvevent.RouterEvent, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	id := uint64(0)
	for b.Loop() {
		one[0] = *turn[id%2]
		id++
		one[0].ID = id
		sink.Publish(one)
		for id*run-sink.Stats().Blocks > 64<<10 {
			runtime.Gosched()
		}
	}
	for sink.Stats().Blocks < id*run {
		runtime.Gosched()
	}
	b.StopTimer()
	runtime.ReadMemStats(&after)
	if st := sink.Stats(); st.Overflows > 0 || st.UnknownTokens > 0 || st.Gaps > 0 {
		b.Fatalf("not everything was sent: %+v", st)
	}
	b.ReportMetric(float64(id*run)/b.Elapsed().Seconds(), "blocks/s")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(id*run), "allocs/block")
}

// readInBackground reads batches, and throws them away, until the benchmark ends.
func readInBackground(b *testing.B, sink *Sink) {
	reader := subscribe(b, sink.Endpoint())
	waittest.Until(b, "the subscription", func() bool { return sink.Stats().Reannounced == 1 })
	if err := reader.sub.SetRcvtimeo(100 * time.Millisecond); err != nil {
		b.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				// A timeout is as good as a batch.
				_, _ = reader.sub.RecvMessageBytes(0)
			}
		}
	}()
	b.Cleanup(func() {
		close(stop)
		<-done
	})
}
