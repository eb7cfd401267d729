package readahead

import (
	"testing"

	"go.uber.org/zap"
)

// TestAFullQueueDropsHints: hints that nobody looks at take no memory beyond the queue's bound.
func TestAFullQueueDropsHints(t *testing.T) {
	r := New(zap.NewNop())
	for range maxHints + 7 {
		r.Add(nil, []byte{0})
	}
	if got, want := r.Stats(), (Stats{Dropped: 7}); got != want || len(r.queue) != maxHints {
		t.Errorf("got %+v and %d queued, want %+v and %d", got, len(r.queue), want, maxHints)
	}
}
