package nats

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// TestNothingIsDroppedUncounted: what a feed without a server was told, and what
// came after its end, is in its counters.
func TestNothingIsDroppedUncounted(t *testing.T) {
	_, f, src := startFeed(t, Options{URL: "nats://127.0.0.1:1", ConnectTimeout: time.Millisecond, AnnounceEvery: time.Millisecond})
	for i := range 10 {
		src.Store(i+1, 1)
	}
	publishertest.Eventually(t, "an announcement that cannot be sent", func() bool { return f.Stats().SilentAnnouncements > 0 })
	if s := f.Stats(); s.Unsent != 10 || s.Skipped != 0 {
		t.Errorf("before the end: %+v", s)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	src.Store(11, 1)
	if s := f.Stats(); s.Unsent != 0 || s.Skipped != 10 || s.AfterClose != 1 || s.Events != 0 {
		t.Errorf("after the end: %+v", s)
	}
}
