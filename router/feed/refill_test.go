package feed

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// lossySet is a residency that never has all it was told, though it has room.
type lossySet struct{ blockSet }

func (s *lossySet) Lost(kv.Owner) uint64 { return 1 }

// TestWhatIsLostAgainIsAskedForLessAndLess: a contradiction costs a dump now and then,
// and one feed at a time is refilled.
func TestWhatIsLostAgainIsAskedForLessAndLess(t *testing.T) {
	set := &Set{}
	now := time.Unix(1000, 0)
	feed := func() *feed {
		return &feed{everComplete: true, lostPairs: 1, index: &lossySet{blockSet{held: map[kv.SequenceHash]bool{}}}}
	}
	f, other := feed(), feed()
	tries := 0
	for range 6 * 3600 {
		set.refillLocked(f, now)
		if set.refillLocked(other, now); f.recovering && other.recovering {
			t.Fatal("two feeds are refilled at a time")
		}
		if _, number, due := f.nextQuery(now); due {
			tries++
			if err := f.handleAnswer(number, &source.Answer{Kind: kvevent.QueryTreeDump}, nil, now); err != nil {
				t.Fatal(err)
			}
		}
		other.recovery = recovery{}
		now = now.Add(time.Second)
	}
	if tries != 14 {
		t.Errorf("%d tries in six hours, want those after 10 s, 20 s, 40 s and so on, and then each hour", tries)
	}
}
