package mirror

import (
	"reflect"
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// testCheckpoint is what the tests' checkpoints are about.
var testCheckpoint = checkpoint.ID{Worker: kv.Worker{ID: 7}, BlockSize: testBlockSize}

// savedCache is a mirror with everything that a checkpoint can hold.
func savedCache() (*Cache, sequence.State) {
	s := residency.NewStream(testOwner, nil)
	c := newCache(s, testBlockSize, 1<<20)
	salted := residencytest.StoredEvent(0, 50, 2)
	salted.Salt, salted.LoRAName = "tenant", "adapter"
	cpu := residencytest.StoredEvent(0, 1, 2)
	cpu.Medium = "CPU"
	cpu.Group, cpu.SpecKind = 3, "full_attention"
	waiting := residencytest.StoredEvent(900, 60, 3)
	waiting.Multimodal = [][]uint64{{5}, nil, nil}
	// The same content as block 1 under another name.
	twin := residencytest.StoredEvent(0, 1, 1)
	twin.BlockHashes[0] = 777
	c.Apply(&engineevent.Batch{Events: []engineevent.Event{
		residencytest.StoredEvent(0, 1, 4), residencytest.StoredEvent(2, 10, 2), residencytest.StoredEvent(0, 1, 1), salted, cpu, twin, waiting, residencytest.RemovedEvent(61),
	}})
	c.onlyListed = map[kv.EngineHash]struct{}{4711: {}}
	return c, sequence.State{Next: 42, LastLive: 40, HasLive: true, Remembered: []sequence.Applied{{After: 42, Sum: 4711}}}
}

func (c *Cache) encoded(st sequence.State) []byte {
	return checkpoint.AppendChecksum(c.AppendCheckpoint(nil, testCheckpoint, st))
}

// TestCheckpointHoldsEverything: what is restored is what was saved: state,
// counts, identities, what waits and what is only listed; and a checkpoint of it
// has the same parts.
func TestCheckpointHoldsEverything(t *testing.T) {
	c, seq := savedCache()
	want := c.stream.Status()
	ck, err := checkpoint.Parse(c.encoded(seq), testCheckpoint)
	if err != nil {
		t.Fatal(err)
	}
	rec := residencytest.NewRecorder(t)
	s := residency.NewStream(testOwner, rec)
	again := newCache(s, testBlockSize, 1<<20)
	if n := again.Restore(ck); n != c.known.Len() {
		t.Errorf("%d blocks restored, want %d", n, c.known.Len())
	}
	got := s.Status()
	if got.Digest != want.Digest || got.Blocks != want.Blocks || got.Health != kvevent.HealthDegraded {
		t.Errorf("restored %+v, want %+v, degraded", got, want)
	}
	residencytest.Check(t, s, rec.Resident())
	if !reflect.DeepEqual(ck.Sequence, seq) {
		t.Errorf("the sequence is at %+v, want %+v", ck.Sequence, seq)
	}
	if again.park.runs != 1 || len(again.onlyListed) != 1 || !again.lowerTiers || !again.groups.main[3] {
		t.Errorf("%d runs wait, unlisted %v, lower tiers %t, groups %v", again.park.runs, again.onlyListed, again.lowerTiers, again.groups.main)
	}
	// From here on both must do the same.
	next := engineevent.Batch{Events: []engineevent.Event{
		residencytest.StoredEvent(0, 900, 1), residencytest.RemovedEvent(1), residencytest.RemovedEvent(777), residencytest.RemovedEvent(4711), residencytest.RemovedEvent(51, 62),
	}}
	for _, c := range []*Cache{c, again} {
		c.Apply(&next)
		c.stream.Flush()
	}
	want, got = c.stream.Status(), s.Status()
	if got.Digest != want.Digest || got.Blocks != want.Blocks || got.Health != want.Health || got.Health != kvevent.HealthExact {
		t.Errorf("after a batch more: %+v, want %+v", got, want)
	}
	residencytest.Check(t, s, rec.Resident())
}

// FuzzCheckpoint: no file makes parsing panic, and what it accepts can be
// restored to a stream whose digest is that of its events.
func FuzzCheckpoint(f *testing.F) {
	full := savedFile()
	f.Add(full[:len(full)-4])
	f.Add([]byte("BYRANK\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ck, err := checkpoint.Parse(checkpoint.AppendChecksum(b), testCheckpoint)
		if err != nil {
			return
		}
		rec := residencytest.NewRecorder(t)
		s := residency.NewStream(testOwner, rec)
		c := newCache(s, testBlockSize, 1<<20)
		c.Restore(ck)
		if st, set := s.Status(), rec.Resident(); st.Digest != residencytest.Digest(set) || st.Blocks != uint64(len(set)) {
			t.Errorf("%d blocks, digest %x; the events say %d, %x", st.Blocks, st.Digest, len(set), residencytest.Digest(set))
		}
	})
}

func savedFile() []byte {
	c, seq := savedCache()
	return c.encoded(seq)
}
