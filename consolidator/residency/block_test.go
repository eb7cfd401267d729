package residency

import (
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestReferencesNeitherWrapNorSkip: a block stays in its tier for exactly as many
// removals as it has references, and its other tiers are not touched, however many
// references there are.
func TestReferencesNeitherWrapNorSkip(t *testing.T) {
	for _, tier := range kv.Tiers {
		t.Run(tier.String(), func(t *testing.T) {
			rec := residencytest.NewRecorder(t)
			s := NewStream(testOwner, rec)
			block := []kvevent.StoredBlock{{Hash: 5, Local: 5}}
			n := 2*int(RefLimit(tier)) + 3
			for range n {
				s.Store(tier, 0, false, 0, block)
			}
			for i := range n {
				s.Flush()
				if _, held := rec.Resident()[residencytest.Pair{Tier: tier, Hash: 5}]; !held || s.Status().Blocks != 1 {
					t.Fatalf("held %v after %d of %d removals", rec.Resident(), i, n)
				}
				s.Remove(tier, []kv.SequenceHash{5})
			}
			s.Remove(tier, []kv.SequenceHash{5}) // one too many
			if st := s.Status(); st.Blocks != 0 || st.Digest != 0 || len(rec.Resident()) != 0 || len(s.tx.excess) != 0 {
				t.Errorf("after all removals: %+v, held %v, %d large counts", st, rec.Resident(), len(s.tx.excess))
			}
			if got := s.Stats().UnknownRemoves; got != 1 {
				t.Errorf("%d unknown removals, want 1", got)
			}
		})
	}
}
