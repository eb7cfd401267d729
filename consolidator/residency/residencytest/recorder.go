package residencytest

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

// MaxEventBlocks is how many blocks one event may have.
const MaxEventBlocks = 512

// Pair is a block of a KV group in one tier.
type Pair struct {
	Tier  kv.Tier
	Hash  kv.SequenceHash
	Group uint32
}

// Recorder is a sink that replays events into the set a consumer would have,
// and checks what every consumer relies on: ids without holes, and limits.
type Recorder struct {
	t *testing.T

	mu     sync.Mutex
	lines  []string
	lastID uint64
	set    map[Pair]struct{}
	health []kvevent.Health
}

// NewRecorder returns an empty recorder that fails t.
func NewRecorder(t *testing.T) *Recorder {
	return &Recorder{t: t, set: make(map[Pair]struct{})}
}

// Publish implements residency.Sink.
func (r *Recorder) Publish(events []kvevent.RouterEvent) {
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
		if e.NumBlocks() > MaxEventBlocks {
			r.t.Errorf("event %d has %d blocks", e.ID, e.NumBlocks())
		}
		if e.Kind != kvevent.Cleared && e.NumBlocks() == 0 {
			r.t.Errorf("event %d is empty", e.ID)
		}
		Replay(r.t, r.set, e)
		r.lines = append(r.lines, Format(e))
	}
	if len(events) == 0 || len(events) > kvevent.MaxEventsPerMessage || blocks > kvevent.MaxBlocksPerMessage {
		r.t.Errorf("published %d events with %d blocks at once", len(events), blocks)
	}
}

// HealthChanged implements residency.HealthObserver.
func (r *Recorder) HealthChanged(h kvevent.Health) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health = append(r.health, h)
}

// LastID returns the id of the last event.
func (r *Recorder) LastID() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastID
}

// Health returns what HealthChanged was called with.
func (r *Recorder) Health() []kvevent.Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.health)
}

// Begin makes the recorder hold a snapshot's events, the last of which has id last.
func (r *Recorder) Begin(events []kvevent.RouterEvent, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range events {
		Replay(r.t, r.set, &events[i])
	}
	r.lastID = last
}

// Take returns the events recorded since the last call, one line each.
func (r *Recorder) Take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.lines, "")
	r.lines = nil
	return s
}

// Resident returns the blocks that a consumer of the events would have.
func (r *Recorder) Resident() map[Pair]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.set)
}

// Replay applies e as a consumer does, and fails when it stores what is
// there or removes what is not.
func Replay(t testing.TB, set map[Pair]struct{}, e *kvevent.RouterEvent) {
	for _, b := range e.Blocks {
		k := Pair{e.Tier, b.Hash, e.Group}
		if _, ok := set[k]; ok {
			t.Errorf("event %d stores %x in %s again", e.ID, uint64(b.Hash), e.Tier)
		}
		set[k] = struct{}{}
	}
	for _, h := range e.Removed {
		k := Pair{e.Tier, h, e.Group}
		if _, ok := set[k]; !ok {
			t.Errorf("event %d removes %x from %s, where it is not", e.ID, uint64(h), e.Tier)
		}
		delete(set, k)
	}
	if e.Kind == kvevent.Cleared {
		clear(set)
	}
}

// Format writes an event as one line of a script.
func Format(e *kvevent.RouterEvent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", e.ID, e.Kind)
	if e.Group != 0 {
		fmt.Fprintf(&b, " group=%d", e.Group)
	}
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

// Digest returns Sum of the status of a stream that holds set.
func Digest(set map[Pair]struct{}) uint64 {
	status := sums(set, kvevent.Status{})
	return status.Sum()
}

// sums adds what status says of a stream that holds set to want.
func sums(set map[Pair]struct{}, want kvevent.Status) kvevent.Status {
	for k := range set {
		if d := kv.Digest(kv.InGroup(k.Hash, k.Group), k.Tier); k.Group == 0 {
			want.Digest += d
			want.Blocks++
		} else {
			want.GroupDigest += d
			want.GroupBlocks++
		}
	}
	return want
}

// Stream is a *residency.Stream or a *residency.Merged. This package must not import
// that one, whose tests use it.
type Stream interface {
	Status() kvevent.Status
	Snapshot() (events []kvevent.RouterEvent, last, digest uint64)
}

// Check compares a stream's own account with what its events said.
func Check(t testing.TB, s Stream, set map[Pair]struct{}) {
	t.Helper()
	status := s.Status()
	if want := sums(set, kvevent.Status{LastEventID: status.LastEventID, Health: status.Health}); status != want {
		t.Fatalf("stream says %+v; its events say %+v", status, want)
	}
	events, last, digest := s.Snapshot()
	if last != status.LastEventID || digest != status.Sum() {
		t.Fatalf("snapshot is at event %d, digest %x; status at %d, %x", last, digest, status.LastEventID, status.Sum())
	}
	dump := make(map[Pair]struct{})
	seen := make(map[kv.SequenceHash]bool)
	for i := range events {
		e := &events[i]
		if n := e.NumBlocks(); n == 0 || n > MaxEventBlocks {
			t.Fatalf("snapshot event %d has %d blocks", i, n)
		}
		if e.HasParent && !seen[e.Parent] {
			for k := range set {
				if k.Hash == e.Parent && k.Group == 0 {
					t.Fatalf("snapshot has %x before its parent %x", uint64(e.Blocks[0].Hash), uint64(e.Parent))
				}
			}
		}
		for _, b := range e.Blocks {
			seen[b.Hash] = seen[b.Hash] || e.Group == 0
		}
		Replay(t, dump, e)
	}
	if !maps.Equal(dump, set) {
		t.Fatalf("snapshot holds %d pairs, the events %d", len(dump), len(set))
	}
}
