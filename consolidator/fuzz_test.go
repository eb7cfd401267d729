package consolidator

import (
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// FuzzConversion: whatever an engine sends, the stream's events, its digest and
// its dump agree, and clearing the engine leaves nothing.
func FuzzConversion(f *testing.F) {
	encode := func(events ...engineevent.Event) []byte {
		return engineevent.AppendBatch(nil, &engineevent.Batch{HasRank: true, Events: events})
	}
	cpu := storedEvent(0, 1, 1)
	cpu.Medium = "CPU"
	f.Add(encode(storedEvent(0, 1, 3), removedEvent(2)), encode(storedEvent(3, 4, 1)))
	f.Add(encode(cpu, storedEvent(0, 1, 2)), encode(engineevent.Event{Kind: kvevent.Cleared, Group: engineevent.NoGroup}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		rec := residencytest.NewRecorder(t)
		s := residency.NewStream(testOwner, rec)
		c := newConverter(s, kv.Worker{ID: 7}, testBlockSize, 64, new(counters))
		var dec engineevent.Decoder
		var b engineevent.Batch
		for _, payload := range [][]byte{first, second, first} {
			if dec.Decode(payload, &b) == nil {
				c.apply(&b)
			}
		}
		s.Flush()
		residencytest.Check(t, s, rec.Resident())
		c.lost()
		if st := s.Status(); st.Blocks != 0 || st.Digest != 0 {
			t.Errorf("%d blocks left", st.Blocks)
		}
	})
}

// FuzzMessages: whatever parts arrive, parsing does not panic, and what it
// accepts has a payload.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{}, seqFrame(3), []byte{1}, []byte{}, 3)
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, n int) {
		parts := [][]byte{a, b, c, d}
		if n < 0 || n > len(parts) {
			return
		}
		parts = parts[:n]
		if _, _, err := parseLive(parts); (err == nil) != (n == 3 && len(b) == 8) {
			t.Errorf("live %x: %v", parts, err)
		}
		if r, err := parseReply(parts); err == nil && r.end && len(r.payload) > 0 {
			t.Errorf("reply %x: %+v", parts, r)
		}
	})
}
