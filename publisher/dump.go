package publisher

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxTail bounds the events that Extend applies to a dump. With more events a new snapshot is
// cheaper.
const maxTail = 512

// Dump is the state of an owner after an event, as stored events, parents before children. A
// Dump belongs to one goroutine; its events are never changed.
type Dump struct {
	Events []kvevent.RouterEvent
	// Last is the id of the last event that the dump includes, Digest the status' Sum after it.
	Last, Digest uint64
	// A chunk fits into one message of maxBytes: chunk i has the events from
	// starts[i] to before starts[i+1]. starts is nil until a chunk is read.
	starts   []int
	maxBytes int
}

// TakeDump returns a dump of src's present state.
func TakeDump(src Source) Dump {
	var d Dump
	d.Events, d.Last, d.Digest = src.Snapshot()
	return d
}

// Chunk returns the events of chunk i of the dump: a chunk is what one message carries. final is
// true for the last chunk, and ok is false for a chunk that the dump does not have. The first
// call cuts the dump into chunks for messages of at most maxBytes; later calls ignore maxBytes.
func (d *Dump) Chunk(i uint32, maxBytes int) (events []kvevent.RouterEvent, final, ok bool) {
	if d.starts == nil {
		d.maxBytes = maxBytes
		for at := 0; at == 0 || at < len(d.Events); { // an empty dump has one empty chunk
			d.starts = append(d.starts, at)
			at += max(1, MessageLen(d.Events[at:], maxBytes))
		}
	}
	n := uint32(len(d.starts))
	if i >= n {
		return nil, false, false
	}
	end := len(d.Events)
	if i+1 < n {
		end = d.starts[i+1]
	}
	return d.Events[d.starts[i]:end], i+1 == n, true
}

// Fits reports whether the chunks that were read are messages of at most maxBytes.
func (d *Dump) Fits(maxBytes int) bool { return d.maxBytes <= maxBytes }

// Extend brings an older dump of the owner's state up to date: it applies the journal's events up
// to status, the source's present status, to a copy of d. So the source need not make a new
// snapshot. ok is false when only a new snapshot helps, or is cheaper: the journal lacks events,
// there are more than maxTail, an event clears the owner, or the result does not have the digest
// of status. The digest is a sum over the resident (block, tier) pairs.
func (f *Feed) Extend(d *Dump, status *Status) (extended Dump, ok bool) {
	if status.LastEventID == d.Last {
		return *d, status.Sum() == d.Digest
	}
	if status.LastEventID < d.Last || status.LastEventID-d.Last > maxTail {
		return Dump{}, false
	}
	tail, ok := f.Range(d.Last+1, status.LastEventID)
	if !ok {
		return Dump{}, false
	}
	digest := d.Digest
	for i := range tail {
		e := &tail[i]
		switch e.Kind {
		case kvevent.Cleared: // no event of d remains
			return Dump{}, false
		case kvevent.Stored:
			for _, b := range e.Blocks {
				digest += kv.Digest(kv.InGroup(b.Hash, e.Group), e.Tier)
			}
		case kvevent.Removed:
			for _, h := range e.Removed {
				digest -= kv.Digest(kv.InGroup(h, e.Group), e.Tier)
			}
		}
	}
	if digest != status.Sum() {
		return Dump{}, false
	}
	return Dump{Events: applyTail(d.Events, tail), Last: status.LastEventID, Digest: digest}, true
}

// Range returns copies of the journal's events first to last; false when the journal
// does not have all of them.
func (f *Feed) Range(first, last uint64) ([]kvevent.RouterEvent, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.journal.Range(first, last)
}

// Held returns the range of the journal's event ids, first to next-1; both are 0 before the
// first event.
func (f *Feed) Held() (first, next uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.journal.Held()
}

// AnswerRange answers a consumer's query for lost events from q.StartID on, from the journal. r is
// the reply without its events, which the caller sends in messages by Chunks. ok is false when
// only a dump can answer, because the journal lacks some of the events. A range that cannot be
// is an answer too (ok is true), with a Kind that says so.
func (f *Feed) AnswerRange(src Source, q *kvevent.QueryRequest) (r kvevent.QueryReply, events []kvevent.RouterEvent, ok bool) {
	// Ids begin at 1; a consumer without events may ask from 0.
	start := max(q.StartID, 1)
	last := src.Status().LastEventID
	switch {
	case q.HasEnd && q.EndID < q.StartID:
		return kvevent.QueryReply{Kind: kvevent.QueryInvalidRange, LastEventID: last,
			Message: fmt.Sprintf("end %d lies before start %d", q.EndID, q.StartID)}, nil, true
	case start > last:
		return kvevent.QueryReply{Kind: kvevent.QueryTooNew, LastEventID: last,
			Message: fmt.Sprintf("event %d has not happened yet", start)}, nil, true
	}
	end := last
	if q.HasEnd {
		end = min(end, q.EndID)
	}
	events, ok = f.Range(start, end)
	return kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: end}, events, ok
}

// tierBlock is a block in a tier. hash is kv.InGroup of its name.
type tierBlock struct {
	tier kv.Tier
	hash kv.SequenceHash
}

// blockOf returns the block of e with a name.
func blockOf(e *kvevent.RouterEvent, name kv.SequenceHash) tierBlock {
	return tierBlock{e.Tier, kv.InGroup(name, e.Group)}
}

// applyTail returns a newer dump: events are the stored events of a dump, and tail has the later
// events of the stream (stored and removed ones). The result are stored events of the blocks that
// are resident after tail, parents before children, with new ids. It shares the memory of blocks
// with both.
func applyTail(events, tail []kvevent.RouterEvent) []kvevent.RouterEvent {
	// residentAfter has each block that tail stores or removes: true if the block is resident at
	// the end. A block is deleted from the map once it is in out, so that it comes only once.
	residentAfter := make(map[tierBlock]bool)
	for i := range tail {
		e := &tail[i]
		for _, b := range e.Blocks {
			residentAfter[blockOf(e, b.Hash)] = true
		}
		for _, h := range e.Removed {
			residentAfter[blockOf(e, h)] = false
		}
	}
	out := make([]kvevent.RouterEvent, 0, len(events)+len(tail))
	for i := range events { // keep the blocks that tail leaves alone or stores again
		e := &events[i]
		out = appendRuns(out, e, func(h kv.SequenceHash) bool {
			key := blockOf(e, h)
			resident, changed := residentAfter[key]
			if changed && resident {
				delete(residentAfter, key)
			}
			return !changed || resident
		})
	}
	for i := range tail { // add the blocks that only tail stores, once each
		e := &tail[i]
		out = appendRuns(out, e, func(h kv.SequenceHash) bool {
			key := blockOf(e, h)
			resident := residentAfter[key]
			delete(residentAfter, key)
			return resident
		})
	}
	// A parent that was removed and stored again is behind its children in out. Its
	// position is lower than theirs, and so is the position of its run. Blocks of other groups
	// than the primary one come last: they have no position.
	slices.SortStableFunc(out, func(a, b kvevent.RouterEvent) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.StartPosition, b.StartPosition))
	})
	for i := range out {
		out[i].ID = uint64(i) + 1
	}
	return out
}

// appendRuns appends the blocks of stored event e for which keep is true to dst, as one event for
// each run of neighbours. The parent of a run is the block before it, kept or not. Without kept
// blocks it appends nothing.
func appendRuns(dst []kvevent.RouterEvent, e *kvevent.RouterEvent, keep func(kv.SequenceHash) bool) []kvevent.RouterEvent {
	from := 0
	flush := func(to int) {
		if from == to {
			return
		}
		run := *e
		run.Blocks = e.Blocks[from:to:to]
		if from > 0 && e.Group == 0 {
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
