package publisher

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxTail bounds the events by which a dump is brought up to date; beyond them a
// new snapshot is taken.
const maxTail = 512

// dump is everything that an owner holds after an event, as stored events,
// parents before children. The zero value is none.
type dump struct {
	events []kvevent.RouterEvent
	last   uint64
	digest uint64
	held   bool
}

// refresh makes the cache what the owner holds now, from the journal if that has
// what happened since, else by a snapshot; taken says that it was a snapshot.
// There is never more than one: the old one is let go first.
func (a *answerer) refresh() (taken bool) {
	status := a.src.Status()
	if a.cache.held && a.extend(&status) {
		return false
	}
	a.cache = dump{}
	a.cache.events, a.cache.last, a.cache.digest = a.src.Snapshot()
	a.cache.held = true
	a.feed.count.snapshots.Add(1)
	return true
}

// extend brings the cache to the event of a status, with the events in between;
// false when that is not possible or does not end with the status' digest.
func (a *answerer) extend(status *Status) bool {
	c := &a.cache
	if status.LastEventID == c.last {
		return status.Digest == c.digest
	}
	if status.LastEventID < c.last || status.LastEventID-c.last > maxTail {
		return false
	}
	tail, ok := a.feed.journalRange(c.last+1, status.LastEventID)
	if !ok {
		return false
	}
	digest := c.digest
	for i := range tail {
		e := &tail[i]
		switch e.Kind {
		case kvevent.Cleared:
			return false
		case kvevent.Stored:
			for _, b := range e.Blocks {
				digest += kv.Digest(b.Hash, e.Tier)
			}
		case kvevent.Removed:
			for _, h := range e.Removed {
				digest -= kv.Digest(h, e.Tier)
			}
		}
	}
	if digest != status.Digest {
		return false
	}
	*c = dump{events: applyTail(c.events, tail), last: status.LastEventID, digest: digest, held: true}
	return true
}

// place is a block in a tier.
type place struct {
	tier kv.Tier
	hash kv.SequenceHash
}

// applyTail is a dump after further events, parents still before children. The
// result shares the blocks of both; the ids are new.
func applyTail(events, tail []kvevent.RouterEvent) []kvevent.RouterEvent {
	// touched says of each block that the tail names whether it is resident in the
	// end; who is written out is taken from it.
	touched := make(map[place]bool)
	for i := range tail {
		e := &tail[i]
		for _, b := range e.Blocks {
			touched[place{e.Tier, b.Hash}] = true
		}
		for _, h := range e.Removed {
			touched[place{e.Tier, h}] = false
		}
	}
	out := make([]kvevent.RouterEvent, 0, len(events)+len(tail))
	for i := range events {
		e := &events[i]
		out = appendRuns(out, e, func(h kv.SequenceHash) bool {
			at := place{e.Tier, h}
			resident, known := touched[at]
			if known && resident {
				delete(touched, at)
			}
			return !known || resident
		})
	}
	for i := range tail {
		e := &tail[i]
		out = appendRuns(out, e, func(h kv.SequenceHash) bool {
			at := place{e.Tier, h}
			resident := touched[at]
			delete(touched, at)
			return resident
		})
	}
	// A parent may have come back after its children were stored. It lies at a lower
	// position than they, and so does the head of its run.
	slices.SortStableFunc(out, func(a, b kvevent.RouterEvent) int { return cmp.Compare(a.StartPosition, b.StartPosition) })
	for i := range out {
		out[i].ID = uint64(i) + 1
	}
	return out
}

// appendRuns appends a stored event without the blocks that are not to be kept,
// as one event for each run of those that are. Other events have no blocks.
func appendRuns(dst []kvevent.RouterEvent, e *kvevent.RouterEvent, keep func(kv.SequenceHash) bool) []kvevent.RouterEvent {
	from := 0
	flush := func(to int) {
		if from == to {
			return
		}
		run := *e
		run.Blocks = e.Blocks[from:to:to]
		if from > 0 {
			run.Parent, run.HasParent = e.Blocks[from-1].Hash, true
			run.StartPosition += uint32(from)
		}
		dst = append(dst, run)
	}
	for i := range e.Blocks {
		if !keep(e.Blocks[i].Hash) {
			flush(i)
			from = i + 1
		}
	}
	flush(len(e.Blocks))
	return dst
}
