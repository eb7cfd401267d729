package publisher

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func storedEvent(id uint64, blocks int) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: testOwner, ID: id, Kind: kvevent.Stored, Blocks: make([]kvevent.StoredBlock, blocks)}
	for i := range e.Blocks {
		e.Blocks[i].Hash = kv.SequenceHash(id*1000 + uint64(i))
	}
	return e
}

// journalOf returns a feed's journal with events of those ids, each of that many blocks.
func journalOf(blocks int, ids ...uint64) *Journal[kvevent.RouterEvent] {
	j := newEventJournal()
	for _, id := range ids {
		j.Append(id, storedEvent(id, blocks))
	}
	return j
}

func upTo(last uint64) (ids []uint64) {
	for id := uint64(1); id <= last; id++ {
		ids = append(ids, id)
	}
	return ids
}

func TestJournalKeepsTheNewestEntriesWithinItsBounds(t *testing.T) {
	for name, tc := range map[string]struct {
		blocks      int
		ids         []uint64
		first, next uint64
		weight      int
	}{
		"empty":              {0, nil, 0, 0, 0},
		"bounded in events":  {1, upTo(2 * JournalEvents), JournalEvents + 1, 2*JournalEvents + 1, JournalEvents},
		"bounded in blocks":  {512, upTo(1000), 1001 - journalBlocks/512, 1001, journalBlocks},
		"one beyond bounds":  {journalBlocks + 1, upTo(2), 2, 3, journalBlocks + 1},
		"anew after a hole":  {1, []uint64{1, 2, 7}, 7, 8, 1},
		"begins with any id": {1, []uint64{41, 42}, 41, 43, 2},
	} {
		t.Run(name, func(t *testing.T) {
			j := journalOf(tc.blocks, tc.ids...)
			if first, next := j.Held(); first != tc.first || next != tc.next || j.weight != tc.weight {
				t.Fatalf("entries %d to before %d of weight %d, want %d, %d and %d", first, next, j.weight, tc.first, tc.next, tc.weight)
			}
			want := max(tc.first, 1)
			for id, e := range j.From(0) {
				if id != want || e.ID != id || tc.blocks > 0 && e.Blocks[0].Hash != kv.SequenceHash(id*1000) {
					t.Fatalf("entry %d is %+v, want %d", id, e, want)
				}
				want++
			}
			if tc.next > 0 && want != tc.next {
				t.Errorf("entries end before %d, want %d", want, tc.next)
			}
			if j.Holds(tc.next) || tc.first > 0 && j.Holds(tc.first-1) {
				t.Error("the journal claims entries outside of its range")
			}
		})
	}
}

func TestJournalRanges(t *testing.T) {
	j := journalOf(1, 3, 4, 5, 6)
	for _, tc := range []struct {
		first, last uint64
		ok          bool
	}{{3, 6, true}, {4, 4, true}, {2, 4, false}, {5, 7, false}, {5, 4, false}} {
		events, ok := j.Range(tc.first, tc.last)
		if ok != tc.ok || ok && (events[0].ID != tc.first || uint64(len(events)) != tc.last-tc.first+1) {
			t.Errorf("range %d to %d: %d events, %v; want %v", tc.first, tc.last, len(events), ok, tc.ok)
		}
	}
}

func TestJournalSkipLeavesAHole(t *testing.T) {
	j := journalOf(1, 1, 2)
	j.Skip()
	if first, next := j.Held(); first != 4 || next != 4 || j.weight != 0 {
		t.Errorf("entries %d to before %d of weight %d, want none before 4", first, next, j.weight)
	}
	j.Append(4, storedEvent(4, 1))
	if !j.Holds(4) || j.Holds(3) {
		t.Error("the journal does not go on behind the hole")
	}
}

func TestEventsAreCopied(t *testing.T) {
	e := storedEvent(1, 2)
	var copies slab
	c := copies.clone(&e)
	e.Blocks[0].Hash = 0
	if got := c.Blocks[0].Hash; got != 1000 {
		t.Errorf("hash %d", got)
	}
}

func TestPaceOfAState(t *testing.T) {
	for _, tc := range []struct {
		sent int
		took time.Duration
		want time.Duration
	}{
		{paceBurst, 0, 0},
		{paceBurst + paceRate, 400 * time.Millisecond, 600 * time.Millisecond},
		{paceBurst + paceRate, time.Second, 0},
	} {
		now := time.Now()
		p := NewPace(now)
		p.Sent(tc.sent)
		if d := p.Pause(now.Add(tc.took)); d != tc.want {
			t.Errorf("%d bytes in %v: pause of %v, want %v", tc.sent, tc.took, d, tc.want)
		}
	}
}

// TestBudgetIsEnough: a message filled as its budget allows is within the limit it was
// made for, whatever numbers the events carry.
func TestBudgetIsEnough(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(64<<10, 1<<20).Draw(rt, "limit")
		var events []kvevent.RouterEvent
		for range rapid.IntRange(1, 200).Draw(rt, "events") {
			owner := kv.Owner{Kind: kv.OwnerPool, ID: 1<<64 - 1, Rank: 1<<32 - 1}
			e := kvevent.RouterEvent{Owner: owner, Tier: kv.TierHost, ID: 1<<64 - 1}
			n := rapid.IntRange(1, 512).Draw(rt, "blocks")
			if rapid.Bool().Draw(rt, "stored") {
				e.Kind, e.HasParent, e.Parent, e.HasStart, e.StartPosition = kvevent.Stored, true, 1<<64-1, true, 1<<32-1
				for range n {
					e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: 1<<64 - 1, Local: 1<<64 - 1})
				}
			} else {
				e.Kind = kvevent.Removed
				for range n {
					e.Removed = append(e.Removed, 1<<64-1)
				}
			}
			events = append(events, e)
		}
		for len(events) > 0 {
			n := MessageLen(events, limit)
			if n < 1 || n > kvevent.MaxEventsPerMessage {
				rt.Fatalf("%d events in a message", n)
			}
			blocks := 0
			for i := range events[:n] {
				blocks += events[i].NumBlocks()
			}
			if blocks > kvevent.MaxBlocksPerMessage {
				rt.Fatalf("%d blocks in a message", blocks)
			}
			env := kvevent.Envelope{PublisherID: 1<<53 - 1, Sequence: 1<<64 - 1, PublishedAt: 1<<64 - 1, Topic: kvevent.Topic, Events: events[:n]}
			if size := len(kvevent.AppendEnvelope(nil, &env)); size > limit {
				rt.Fatalf("envelope of %d bytes, limit %d", size, limit)
			}
			reply := kvevent.QueryReply{PublisherID: 1<<53 - 1, Kind: kvevent.QueryTreeDump, LastEventID: 1<<64 - 1, Chunk: 1<<32 - 1, Events: events[:n]}
			if size := len(kvevent.AppendQueryReply(nil, &reply)); size > limit {
				rt.Fatalf("reply of %d bytes, limit %d", size, limit)
			}
			events = events[n:]
		}
	})
}
