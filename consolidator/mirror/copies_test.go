package mirror

import (
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

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
	now := newCache(residency.NewStream(testOwner, nil), 2, 1<<20)
	var stored engineevent.Batch
	for i := range kv.EngineHash(continuations) {
		stored.Events = append(stored.Events,
			lookahead(1000+i, 0, "CPU", 1, 2), lookahead(5000+i, 1000+i, "CPU", 3, uint32(i)))
	}
	now.Apply(&stored)
	check := func(c *Cache, blocks uint64) {
		t.Helper()
		if st := c.stream.Status(); st.Blocks != blocks || c.degraded {
			t.Fatalf("%d blocks, degraded %t; want %d, exact; dropped %v", st.Blocks, c.degraded, blocks, c.count.Dropped())
		}
	}
	check(now, 1+continuations)

	file := checkpoint.AppendChecksum(now.AppendCheckpoint(nil, checkpoint.ID{BlockSize: 2}, sequence.State{}))
	ck, err := checkpoint.Parse(file, checkpoint.ID{BlockSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	restored := newCache(residency.NewStream(testOwner, nil), 2, 1<<20)
	restored.Restore(ck)

	for _, c := range []*Cache{now, restored} {
		for i := range kv.EngineHash(continuations) {
			check(c, 1+continuations-uint64(i))
			c.Apply(&engineevent.Batch{Events: []engineevent.Event{{
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
	s := residency.NewStream(testOwner, nil)
	c := newCache(s, 2, 16)
	c.cfg.CanList = true
	store := &engineevent.Batch{Events: []engineevent.Event{lookahead(1, 0, "STORAGE", 1, 2)}}
	remove := &engineevent.Batch{Events: []engineevent.Event{{
		Kind: kvevent.Removed, BlockHashes: []kv.EngineHash{1}, Medium: "STORAGE", Group: engineevent.NoGroup,
	}}}
	limit := int(residency.RefLimit(kv.TierDisk))
	for range limit {
		c.Apply(store)
	}
	if st := s.Status(); st.Health != kvevent.HealthExact || c.WantsList() {
		t.Fatalf("health %s with %d copies", st.Health, limit)
	}
	c.Apply(store)
	if st := s.Status(); st.Health != kvevent.HealthDegraded || !c.WantsList() || c.count.dropped[dropTooManyCopies].Load() != 1 {
		t.Errorf("health %s, list wanted %t, dropped %v", st.Health, c.wantList, c.count.Dropped())
	}
	for range limit + 1 {
		c.Apply(remove)
	}
	if st := s.Status(); st.Blocks != 0 || st.Digest != 0 || st.Health != kvevent.HealthDegraded {
		t.Errorf("%+v after all removals", st)
	}
}
