package miss

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of lateStores.
const (
	maxLateBlocks = 1 << 14
	maxLateEvents = 1 << 10
)

// lateStores has the blocks of the last stored events that came late. The zero value is empty.
type lateStores struct {
	// blocks is a ring: the n-th block of all is at n % maxLateBlocks. stored counts all.
	blocks []kv.SequenceHash
	stored uint64
	// events is a ring, too. seen counts all.
	events []lateEvent
	seen   uint64
}

// lateEvent is one event with the blocks first..end-1 of all.
type lateEvent struct {
	record
	first, end uint64
}

// add adds the blocks of an event. r has no block. Of a very large event the first blocks are kept.
func (l *lateStores) add(r record, blocks []kvevent.StoredBlock) {
	if l.blocks == nil {
		l.blocks, l.events = make([]kv.SequenceHash, maxLateBlocks), make([]lateEvent, maxLateEvents)
	}
	blocks = blocks[:min(len(blocks), maxLateBlocks)]
	e := lateEvent{r, l.stored, l.stored + uint64(len(blocks))}
	for i := range blocks {
		l.blocks[(l.stored+uint64(i))%maxLateBlocks] = blocks[i].Hash
	}
	l.stored = e.end
	l.events[l.seen%maxLateEvents] = e
	l.seen++
}

// find calls found for each event with a block, newest first, until found returns true or the events
// came before since. It passes over events that were published after since, because they came in
// time.
func (l *lateStores) find(block kv.SequenceHash, since int64, found func(r *record) bool) {
	for n := l.seen; n > 0 && n+maxLateEvents > l.seen; n-- {
		e := &l.events[(n-1)%maxLateEvents]
		if e.at < since {
			return
		}
		if e.at-int64(time.Duration(e.late)*time.Millisecond-Resolution) >= since {
			continue
		}
		for i := e.first; i < e.end; i++ {
			if i+maxLateBlocks >= l.stored && l.blocks[i%maxLateBlocks] == block && found(&e.record) {
				return
			}
		}
	}
}
