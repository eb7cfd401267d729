package consolidator

import (
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestReferencesNeitherWrapNorSkip: a block stays in its tier for exactly as many
// removals as it has references, and its other tiers are not touched, however many
// references there are.
func TestReferencesNeitherWrapNorSkip(t *testing.T) {
	for _, tier := range kv.Tiers {
		t.Run(tier.String(), func(t *testing.T) {
			rec := newRecorder(t)
			s := NewStream(testOwner, rec)
			block := []kvevent.StoredBlock{{Hash: 5, Local: 5}}
			n := 2*int(RefLimit(tier)) + 3
			for range n {
				s.Store(tier, 0, false, 0, block)
			}
			for i := range n {
				s.Flush()
				if _, held := rec.resident()[pair{tier, 5}]; !held || s.Status().Blocks != 1 {
					t.Fatalf("held %v after %d of %d removals", rec.resident(), i, n)
				}
				s.Remove(tier, []kv.SequenceHash{5})
			}
			s.Remove(tier, []kv.SequenceHash{5}) // one too many
			if st := s.Status(); st.Blocks != 0 || st.Digest != 0 || len(rec.resident()) != 0 || len(s.tx.many) != 0 {
				t.Errorf("after all removals: %+v, held %v, %d large counts", st, rec.resident(), len(s.tx.many))
			}
			if got := s.Stats().UnknownRemoves; got != 1 {
				t.Errorf("%d unknown removals, want 1", got)
			}
		})
	}
}

// lookahead is the event with which vLLM 0.33 stores one block of two tokens when its
// hashes cover the token behind the block too.
func lookahead(hash, parent kv.EngineHash, medium string, tokens ...uint32) engineevent.Event {
	return engineevent.Event{
		Kind: kvevent.Stored, BlockHashes: []kv.EngineHash{hash}, Parent: parent, HasParent: parent != 0,
		Tokens: tokens, BlockSize: 2, Medium: medium, Group: engineevent.NoGroup,
	}
}

// TestOneContentHasManyEngineHashes: a prefix is stored once for all its
// continuations, each of which has another engine hash for it, and leaves with the
// last of them. A checkpoint keeps the count.
func TestOneContentHasManyEngineHashes(t *testing.T) {
	const continuations = 300 // more than a table's entry counts in the host tier
	now := newConverter(NewStream(testOwner, nil), kv.Worker{ID: 7}, 2, 1<<20, new(counters))
	var stored engineevent.Batch
	for i := range kv.EngineHash(continuations) {
		stored.Events = append(stored.Events,
			lookahead(1000+i, 0, "CPU", 1, 2), lookahead(5000+i, 1000+i, "CPU", 3, uint32(i)))
	}
	now.apply(&stored)
	check := func(c *converter, blocks uint64) {
		t.Helper()
		if st := c.stream.Status(); st.Blocks != blocks || c.degraded {
			t.Fatalf("%d blocks, degraded %t; want %d, exact; dropped %v", st.Blocks, c.degraded, blocks, c.count.snapshot().Dropped)
		}
	}
	check(now, 1+continuations)

	file := appendChecksum(now.appendCheckpoint(nil, checkpointID{blockSize: 2}, &sequence.State{}))
	ck, err := parseCheckpoint(file, checkpointID{blockSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	restored := newConverter(NewStream(testOwner, nil), kv.Worker{ID: 7}, 2, 1<<20, new(counters))
	restored.restore(ck)

	for _, c := range []*converter{now, restored} {
		for i := range kv.EngineHash(continuations) {
			check(c, 1+continuations-uint64(i))
			c.apply(&engineevent.Batch{Events: []engineevent.Event{{
				Kind: kvevent.Removed, BlockHashes: []kv.EngineHash{5000 + i, 1000 + i}, Medium: "CPU", Group: engineevent.NoGroup,
			}}})
		}
		check(c, 0)
	}
}

// TestCopiesBeyondTheCountDegrade: copies of one engine hash that cannot be counted
// make the stream degraded and ask for the engine's list. Their removals take nothing
// else with them.
func TestCopiesBeyondTheCountDegrade(t *testing.T) {
	s := NewStream(testOwner, nil)
	c := newConverter(s, kv.Worker{ID: 7}, 2, 16, new(counters))
	c.canList = true
	store := &engineevent.Batch{Events: []engineevent.Event{lookahead(1, 0, "STORAGE", 1, 2)}}
	remove := &engineevent.Batch{Events: []engineevent.Event{{
		Kind: kvevent.Removed, BlockHashes: []kv.EngineHash{1}, Medium: "STORAGE", Group: engineevent.NoGroup,
	}}}
	limit := int(RefLimit(kv.TierDisk))
	for range limit {
		c.apply(store)
	}
	if st := s.Status(); st.Health != kvevent.HealthExact || c.wantList {
		t.Fatalf("health %s with %d copies", st.Health, limit)
	}
	c.apply(store)
	if st := s.Status(); st.Health != kvevent.HealthDegraded || !c.wantList || c.count.dropped[dropTooManyCopies].Load() != 1 {
		t.Errorf("health %s, list wanted %t, dropped %v", st.Health, c.wantList, c.count.snapshot().Dropped)
	}
	for range limit + 1 {
		c.apply(remove)
	}
	if st := s.Status(); st.Blocks != 0 || st.Digest != 0 || st.Health != kvevent.HealthDegraded {
		t.Errorf("%+v after all removals", st)
	}
}
