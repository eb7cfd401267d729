package events

import (
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// What is sent must be what an engine of that capacity would send, or the figures
// are about something else.
func TestSourceHoldsItsCapacityAndSaysWhatLeaves(t *testing.T) {
	const capacity = 3*batchBlocks + 5
	s := newSource(capacity, 1)
	held := make(map[kv.EngineHash]bool)
	var d engineevent.Decoder
	var b engineevent.Batch
	for n := range 10 {
		var probe []uint32
		if n%2 == 1 {
			probe = probeTokens(uint32(n))
		}
		payload, named := s.next(probe)
		if err := d.Decode(payload, &b); err != nil || len(b.Bad) > 0 {
			t.Fatalf("batch %d: %v, bad events %v", n, err, b.Bad)
		}
		count := 0
		for _, e := range b.Events {
			count += len(e.BlockHashes)
			for _, h := range e.BlockHashes {
				if held[h] == (e.Kind == kvevent.Stored) {
					t.Fatalf("batch %d: block %x is %s, held before: %t", n, h, e.Kind, held[h])
				}
				if held[h] = e.Kind == kvevent.Stored; !held[h] {
					delete(held, h)
				}
			}
			if e.Kind == kvevent.Stored && len(e.Tokens) != len(e.BlockHashes)*blockSize {
				t.Errorf("batch %d: %d tokens for %d blocks", n, len(e.Tokens), len(e.BlockHashes))
			}
		}
		if count != named {
			t.Errorf("batch %d: names %d blocks, says %d", n, count, named)
		}
	}
	if len(held) != capacity || s.held() != capacity {
		t.Errorf("%d blocks are held, the source says %d; want %d", len(held), s.held(), capacity)
	}
}

func TestLastLineRoundsAgainstUs(t *testing.T) {
	v := visibleFigures{rate: 99999.9}
	for n := range 100 {
		v.ages = append(v.ages, time.Duration(n+1)*time.Millisecond+time.Microsecond)
	}
	wire := wireFigures{fill: 900, churn: 700, allocs: 0.0421, heap: 60.01}
	text := lines(&Options{Blocks: 1000}, wireFigures{fill: 100, churn: 100}, wire, &v)
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	want := "bench-events: rate=99999 blocks_per_s=1111111 allocs_per_block=0.043 visible_p99_ms=100.01 bytes_per_block=60.1"
	if got := all[len(all)-1]; got != want {
		t.Errorf("last line\n%s, want\n%s", got, want)
	}
}
