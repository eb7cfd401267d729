package consolidator

import (
	"testing"

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
	now := newConverter(residency.NewStream(testOwner, nil), kv.Worker{ID: 7}, 2, 1<<20, new(counters))
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
	restored := newConverter(residency.NewStream(testOwner, nil), kv.Worker{ID: 7}, 2, 1<<20, new(counters))
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
	s := residency.NewStream(testOwner, nil)
	c := newConverter(s, kv.Worker{ID: 7}, 2, 16, new(counters))
	c.canList = true
	store := &engineevent.Batch{Events: []engineevent.Event{lookahead(1, 0, "STORAGE", 1, 2)}}
	remove := &engineevent.Batch{Events: []engineevent.Event{{
		Kind: kvevent.Removed, BlockHashes: []kv.EngineHash{1}, Medium: "STORAGE", Group: engineevent.NoGroup,
	}}}
	limit := int(residency.RefLimit(kv.TierDisk))
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
