package sequence_test

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/sequence"
)

// printer is a Target that prints what is applied.
type printer struct{}

func (printer) Apply(payload []byte) bool { fmt.Printf("apply %s\n", payload); return true }
func (printer) Readable([]byte) bool      { return true }
func (printer) Restarted()                { fmt.Println("the engine has restarted") }
func (printer) Lost()                     { fmt.Println("batches are lost") }
func (printer) Continued()                { fmt.Println("the engine is still the same") }

// Batch 1 is lost on its way. The Sequencer asks for a replay and applies every batch once.
func Example() {
	now := time.Unix(0, 0)
	var counters sequence.Counters
	s := sequence.New(sequence.Config{
		Replay: true, Idle: time.Second, Timeout: time.Second, Attempts: 3,
		HeldFrames: 16, HeldBytes: 1 << 20, Remembered: 16,
	}, printer{}, &counters, now)

	s.Live(now, 0, []byte("a"))
	s.Live(now, 2, []byte("c")) // waits for 1
	if start, due := s.Request(now); due {
		fmt.Println("replay from", start)
		for seq, payload := range []string{"a", "b", "c"}[start:] {
			s.Replayed(now, start+uint64(seq), []byte(payload))
		}
		s.ReplayEnd(now)
	}
	fmt.Println("gaps:", counters.Gaps.Load(), "repaired:", counters.Repaired.Load(), "caught up:", s.CaughtUp())
	// Output:
	// apply a
	// replay from 0
	// the engine is still the same
	// apply b
	// apply c
	// gaps: 1 repaired: 1 caught up: true
}
