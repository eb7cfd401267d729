package nats

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/router/source"
)

// TestABacklogKeepsItsOrder and counts its bytes, whatever comes and goes.
func TestABacklogKeepsItsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, twin, next, bytes := backlog{most: 40}, []source.Frame(nil), uint64(0), 0
		for range rapid.IntRange(0, 400).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "push") && !b.full() {
				next++
				f := source.Frame{Position: next, Data: make([]byte, rapid.IntRange(0, 9).Draw(t, "bytes"))}
				b.push(f)
				twin, bytes = append(twin, f), bytes+len(f.Data)
			} else if len(twin) > 0 {
				if got := b.peek(); got.Position != twin[0].Position {
					t.Fatalf("frame %d, want %d", got.Position, twin[0].Position)
				}
				b.pop()
				twin, bytes = twin[1:], bytes-len(twin[0].Data)
			}
			if b.len() != len(twin) || b.bytes != bytes || b.full() != (len(twin) == 40) || len(b.frames) > 2*40+2 {
				t.Fatalf("%d frames of %d bytes in %d places, want %d of %d", b.len(), b.bytes, len(b.frames), len(twin), bytes)
			}
		}
	})
	b := backlog{most: 2}
	if b.push(source.Frame{Data: make([]byte, maxBacklogBytes)}); !b.full() {
		t.Error("a backlog of as many bytes as may be has room")
	}
}
