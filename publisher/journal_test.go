package publisher

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func storedEvent(id uint64, blocks int) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: kv.WorkerOwner(kv.Worker{ID: 7}), ID: id, Kind: kvevent.Stored, Blocks: make([]kvevent.StoredBlock, blocks)}
	for i := range e.Blocks {
		e.Blocks[i].Hash = kv.SequenceHash(id*1000 + uint64(i))
	}
	return e
}

func TestJournalKeepsTheLastEvents(t *testing.T) {
	j := new(Journal)
	for id := uint64(1); id <= 2*JournalEvents; id++ {
		e := storedEvent(id, 1)
		j.Add(&e)
	}
	if j.first != JournalEvents+1 || j.next != 2*JournalEvents+1 || j.blocks != JournalEvents {
		t.Fatalf("events %d to %d with %d blocks", j.first, j.next-1, j.blocks)
	}
	for id := j.first; id < j.next; id++ {
		if e := j.ring[id%JournalEvents]; e.ID != id || e.Blocks[0].Hash != kv.SequenceHash(id*1000) {
			t.Fatalf("event %d is %+v", id, e)
		}
	}
}

func TestJournalIsBoundedInBlocks(t *testing.T) {
	j := new(Journal)
	for id := uint64(1); id <= 1000; id++ {
		e := storedEvent(id, 512)
		j.Add(&e)
	}
	if j.blocks > journalBlocks || j.next-j.first != journalBlocks/512 {
		t.Errorf("%d events with %d blocks", j.next-j.first, j.blocks)
	}
}

func TestJournalBeginsAnewAfterAHole(t *testing.T) {
	j := new(Journal)
	for _, id := range []uint64{1, 2, 7} {
		e := storedEvent(id, 1)
		j.Add(&e)
	}
	if j.Holds(2) || j.Holds(6) || !j.Holds(7) || j.Holds(8) || j.blocks != 1 {
		t.Errorf("journal holds %d to %d, %d blocks", j.first, j.next-1, j.blocks)
	}
}

func TestJournalCopiesWhatItIsLent(t *testing.T) {
	j := new(Journal)
	e := storedEvent(1, 2)
	j.Add(&e)
	e.Blocks[0].Hash = 0
	if got := j.ring[1].Blocks[0].Hash; got != 1000 {
		t.Errorf("hash %d", got)
	}
}

// TestRoomIsEnough: a message filled as room allows is within the limit it was
// made for, whatever numbers the events carry.
func TestRoomIsEnough(t *testing.T) {
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
