package pools

import (
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A dry run and a refused resize show nobody another size, not even for a moment.
func TestRefusedResizeIsSeenByNobody(t *testing.T) {
	tiers := testTiers(t)
	s, err := Open("node", tiers, newTestHub(t, ""), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	done := make(chan struct{})
	var reader sync.WaitGroup
	var reads atomic.Int64
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			got := s.admission.tiers.Load().HostBytes
			reads.Add(1)
			if got != tiers.HostBytes {
				t.Errorf("host size %d is seen, want %d", got, tiers.HostBytes)
				return
			}
		}
	})
	before := reads.Load()
	for i := 0; i < 200 || reads.Load() == before && !t.Failed(); i++ {
		if _, err := s.Resize(kv.TierHost, 2*tiers.HostBytes, true); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Resize(kv.TierHost, blockmgr.MaxExtentBytes<<10, false); err == nil {
			t.Fatal("a tier of a TiB is taken")
		}
	}
	close(done)
	reader.Wait()
	if _, err := s.Resize(kv.TierHost, 2*tiers.HostBytes, false); err != nil || s.admission.tiers.Load().HostBytes != 2*tiers.HostBytes {
		t.Errorf("after a resize: host size %d, %v", s.admission.tiers.Load().HostBytes, err)
	}
}
