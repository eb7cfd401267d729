package consolidator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// recorder is a sink that replays events into the set a consumer would have,
// and checks what every consumer relies on: ids without holes, and limits.
type recorder struct {
	t *testing.T

	mu     sync.Mutex
	lines  []string
	lastID uint64
	set    map[pair]struct{}
	health []kvevent.Health
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, set: make(map[pair]struct{})}
}

func (r *recorder) Publish(events []kvevent.RouterEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	blocks := 0
	for i := range events {
		e := &events[i]
		blocks += e.NumBlocks()
		if e.ID != r.lastID+1 {
			r.t.Errorf("event id %d after %d", e.ID, r.lastID)
		}
		r.lastID = e.ID
		if e.NumBlocks() > maxEventBlocks {
			r.t.Errorf("event %d has %d blocks", e.ID, e.NumBlocks())
		}
		if e.Kind != kvevent.Cleared && e.NumBlocks() == 0 {
			r.t.Errorf("event %d is empty", e.ID)
		}
		replayEvent(r.t, r.set, e)
		r.lines = append(r.lines, formatEvent(e))
	}
	if len(events) == 0 || len(events) > kvevent.MaxEventsPerMessage || blocks > kvevent.MaxBlocksPerMessage {
		r.t.Errorf("published %d events with %d blocks at once", len(events), blocks)
	}
}

func (r *recorder) HealthChanged(h kvevent.Health) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health = append(r.health, h)
}

// take returns the events recorded since the last call, one line each.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.lines, "")
	r.lines = nil
	return s
}

func (r *recorder) resident() map[pair]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.set)
}

// replayEvent applies e as a consumer does, and fails when it stores what is
// there or removes what is not.
func replayEvent(t testing.TB, set map[pair]struct{}, e *kvevent.RouterEvent) {
	for _, b := range e.Blocks {
		k := pair{e.Tier, b.Hash}
		if _, ok := set[k]; ok {
			t.Errorf("event %d stores %x in %s again", e.ID, uint64(b.Hash), e.Tier)
		}
		set[k] = struct{}{}
	}
	for _, h := range e.Removed {
		k := pair{e.Tier, h}
		if _, ok := set[k]; !ok {
			t.Errorf("event %d removes %x from %s, where it is not", e.ID, uint64(h), e.Tier)
		}
		delete(set, k)
	}
	if e.Kind == kvevent.Cleared {
		clear(set)
	}
}

func formatEvent(e *kvevent.RouterEvent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", e.ID, e.Kind)
	switch e.Kind {
	case kvevent.Stored:
		fmt.Fprintf(&b, " %s @%d parent=", e.Tier, e.StartPosition)
		if e.HasParent {
			fmt.Fprintf(&b, "%s", shortHash(e.Parent))
		} else {
			b.WriteString("none")
		}
		for _, s := range e.Blocks {
			fmt.Fprintf(&b, " %s", shortHash(s.Hash))
		}
	case kvevent.Removed:
		hashes := slices.Clone(e.Removed)
		slices.Sort(hashes)
		fmt.Fprintf(&b, " %s", e.Tier)
		for _, h := range hashes {
			fmt.Fprintf(&b, " %s", shortHash(h))
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// shortHash is enough of a hash to tell those of one script apart.
func shortHash(h kv.SequenceHash) string { return fmt.Sprintf("%x", uint64(h)&0xffffffff) }

func digestOf(set map[pair]struct{}) (sum uint64) {
	for k := range set {
		sum += kv.Digest(k.hash, k.tier)
	}
	return sum
}

// checkStream compares a stream's own account with what its events said.
func checkStream(t testing.TB, s *Stream, set map[pair]struct{}) {
	t.Helper()
	status := s.Status()
	if status.Digest != digestOf(set) || status.Blocks != uint64(len(set)) {
		t.Fatalf("stream says %d pairs, digest %x; its events say %d, %x", status.Blocks, status.Digest, len(set), digestOf(set))
	}
	events, last, digest := s.Snapshot()
	if last != status.LastEventID || digest != status.Digest {
		t.Fatalf("snapshot is at event %d, digest %x; status at %d, %x", last, digest, status.LastEventID, status.Digest)
	}
	dump := make(map[pair]struct{})
	seen := make(map[kv.SequenceHash]bool)
	for i := range events {
		e := &events[i]
		if n := e.NumBlocks(); n == 0 || n > maxEventBlocks {
			t.Fatalf("snapshot event %d has %d blocks", i, n)
		}
		if e.HasParent && !seen[e.Parent] {
			for k := range set {
				if k.hash == e.Parent {
					t.Fatalf("snapshot has %x before its parent %x", uint64(e.Blocks[0].Hash), uint64(e.Parent))
				}
			}
		}
		for _, b := range e.Blocks {
			seen[b.Hash] = true
		}
		replayEvent(t, dump, e)
	}
	if !maps.Equal(dump, set) {
		t.Fatalf("snapshot holds %d pairs, the events %d", len(dump), len(set))
	}
}
