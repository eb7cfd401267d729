package nats

import (
	"cmp"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
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
	// id names the dump to those who read it in parts. A part is a range of chunks:
	// chunk i has the events from starts[i] to before starts[i+1], and fits into
	// messages of maxBytes. starts is nil until somebody reads a part.
	id       uint64
	starts   []int
	maxBytes int
	// readUntil is when the dump need not be kept any more for who reads it in parts.
	readUntil time.Time
}

// refresh makes the cache a dump that brings its askers up to date: with what the
// owner holds now, or one that somebody is still reading, if the journal has what
// happened since. It takes a snapshot when it has to; taken says that it did. There
// is never more than one dump: the old one is let go first.
func (a *answerer) refresh(now time.Time) (taken bool) {
	status := a.src.Status()
	if a.cache.maxBytes > a.feed.nats.maxMessage() {
		a.cache = dump{} // its chunks were made for another server
	}
	if a.cache.held && (a.beingRead(&status, now) || a.extend(&status)) {
		return false
	}
	a.cache = dump{}
	a.cache.events, a.cache.last, a.cache.digest = a.src.Snapshot()
	a.cache.held = true
	a.nameDump()
	a.feed.count.snapshots.Add(1)
	return true
}

// nameDump gives the cache an id that no earlier dump of the feed had.
func (a *answerer) nameDump() {
	a.dumps++
	a.cache.id = a.dumps
}

// beingRead reports whether the cache has to stay as it is for somebody who reads
// it in parts, and whoever gets it now can go on with events of the journal.
func (a *answerer) beingRead(status *publisher.Status, now time.Time) bool {
	return now.Before(a.cache.readUntil) && status.LastEventID > a.cache.last && a.feed.journalHolds(a.cache.last+1)
}

// chunk returns the events of a chunk of the dump, and whether it is the last one;
// ok is false for a chunk that the dump does not have. The chunks are made at the
// first call.
func (d *dump) chunk(i uint32, maxBytes int) (events []kvevent.RouterEvent, final, ok bool) {
	if d.starts == nil {
		d.maxBytes = maxBytes
		for at := 0; at == 0 || at < len(d.events); {
			d.starts = append(d.starts, at)
			at += max(1, publisher.MessageLen(d.events[at:], maxBytes))
		}
	}
	n := uint32(len(d.starts))
	if i >= n {
		return nil, false, false
	}
	end := len(d.events)
	if i+1 < n {
		end = d.starts[i+1]
	}
	return d.events[d.starts[i]:end], i+1 == n, true
}

// extend brings the cache to the event of a status, with the events in between;
// false when that is not possible or does not end with the status' digest.
func (a *answerer) extend(status *publisher.Status) bool {
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
	a.nameDump()
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
