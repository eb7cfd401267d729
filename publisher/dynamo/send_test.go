package dynamo

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// bigStream holds some events of as many blocks as go into one on the wire.
type bigStream struct {
	*fakeStream
	events int
}

func (b *bigStream) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	blocks := make([]kvevent.StoredBlock, maxEventBlocks)
	for i := range blocks {
		blocks[i] = kvevent.StoredBlock{Hash: ^kv.SequenceHash(i), Local: ^kv.LocalHash(i)}
	}
	all := make([]kvevent.RouterEvent, b.events)
	for i := range all {
		all[i] = kvevent.RouterEvent{Kind: kvevent.Stored, Blocks: blocks}
	}
	return all, 0, 0
}

// TestSayingEverythingAgainIsPaced: what a source holds goes out no faster than a NATS
// server can pass it on to slow routers; a source that closes does not wait.
func TestSayingEverythingAgainIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{}
		p := openBubble(t, conn, false)
		defer closeBubble(t, p)
		s, err := p.NewSource(testWorker, &bigStream{newFakeStream(), 3000})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(tickEvery)
		began := time.Now()
		synctest.Wait()
		if s.Stats().RestatePauses == 0 {
			t.Fatalf("no pause: %+v", s.Stats())
		}
		for s.Stats().Events < 3001 {
			time.Sleep(time.Millisecond)
		}
		took, sent := time.Since(began), s.Stats().Bytes
		const burst, rate = 32 << 20, 100 << 20
		if least := time.Duration(float64(sent-burst) / rate * 0.9 * float64(time.Second)); sent < 2*burst || took < least {
			t.Errorf("%d bytes in %v, want at least %v", sent, took, least)
		}
		conn.take()
	})
}
