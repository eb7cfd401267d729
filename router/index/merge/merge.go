package merge

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxBlocks is the number of blocks from which Take takes no further event. An event without blocks
	// counts as one block. maxBlocks bounds how long an index is locked for one Take, and the memory of a
	// Merger.
	maxBlocks = 256
	// maxJoined is the most blocks of an event that is joined with others. A larger event
	// gains less than its copy costs.
	maxJoined = 32
)

// Merger merges events. The zero value is ready.
type Merger struct {
	// Events are the events to apply in place of the taken ones.
	Events []kvevent.RouterEvent

	removals, stores []kvevent.RouterEvent
	hashes           rows[kv.SequenceHash]
	blocks           rows[kvevent.StoredBlock]
	// named has every hash that the stores among the first numNamed taken events name.
	named    filter
	numNamed int
}

// Take merges leading events of a message, at least one, and returns their number. It merges stores
// and removals of the primary KV group with one owner and tier.
func (m *Merger) Take(events []kvevent.RouterEvent) int {
	first := &events[0]
	if len(events) == 1 || !mergeable(first, first) || !mergeable(first, &events[1]) {
		m.Events = events[:1]
		return 1
	}
	m.removals, m.stores = m.removals[:0], m.stores[:0]
	m.hashes.clear()
	m.blocks.clear()
	if m.numNamed > 0 {
		m.named, m.numNamed = filter{}, 0
	}
	n := 0
	for blocks := 0; n < len(events) && blocks < maxBlocks && mergeable(first, &events[n]); n++ {
		e := &events[n]
		if e.Kind == kvevent.Stored {
			m.store(e)
		} else if len(m.stores) > 0 && m.mustFollow(events[:n], e.Removed) {
			break
		} else {
			m.remove(e)
		}
		blocks += max(1, e.NumBlocks())
	}
	m.removals = append(m.removals, m.stores...)
	m.Events = m.removals
	return n
}

// Release ends the use of Events. Then m refers to no memory of the caller.
func (m *Merger) Release() {
	clear(m.removals) // with the stores behind
	clear(m.stores)
	m.Events = nil
}

// mergeable reports whether e is a store or a removal of the primary group, and of the owner and the
// tier of first.
func mergeable(first, e *kvevent.RouterEvent) bool {
	return (e.Kind == kvevent.Stored || e.Kind == kvevent.Removed) && e.Group == 0 && e.Tier == first.Tier && e.Owner == first.Owner
}

// store adds e to the stores. A small event that continues the last store joins that store.
func (m *Merger) store(e *kvevent.RouterEvent) {
	if n := len(m.stores); n > 0 && e.HasParent {
		last := &m.stores[n-1]
		if k := len(last.Blocks); k > 0 && last.Blocks[k-1].Hash == e.Parent && m.blocks.join(&last.Blocks, e.Blocks) {
			return
		}
	}
	m.stores = append(m.stores, *e)
	m.blocks.open = false
}

// remove adds e to the removals. A small event joins the last removal.
func (m *Merger) remove(e *kvevent.RouterEvent) {
	if n := len(m.removals); n > 0 && m.hashes.join(&m.removals[n-1].Removed, e.Removed) {
		return
	}
	m.removals = append(m.removals, *e)
	m.hashes.open = false
}

// mustFollow reports whether a removal of hashes may have to come after a store of taken, the events taken
// so far. It is sometimes true without need.
func (m *Merger) mustFollow(taken []kvevent.RouterEvent, hashes []kv.SequenceHash) bool {
	for ; m.numNamed < len(taken); m.numNamed++ {
		e := &taken[m.numNamed]
		if e.HasParent {
			m.named.add(e.Parent)
		}
		for _, b := range e.Blocks {
			m.named.add(b.Hash)
		}
	}
	for _, h := range hashes {
		if m.named.has(h) {
			return true
		}
	}
	return false
}

// rows is memory for the joined blocks of events.
type rows[T any] struct {
	memory []T
	// While open, memory ends with the blocks of the last event, from start on.
	open  bool
	start int
}

func (r *rows[T]) clear() { r.memory, r.open = r.memory[:0], false }

// join appends more to last, the blocks of the last event. It returns false and changes nothing when
// the copies would cost too much.
func (r *rows[T]) join(last *[]T, more []T) bool {
	if len(more) > maxJoined || !r.open && len(*last) > maxJoined {
		return false
	}
	if !r.open { // the blocks still lie in the caller's event
		r.open, r.start = true, len(r.memory)
		r.memory = append(r.memory, *last...)
	}
	r.memory = append(r.memory, more...)
	*last = r.memory[r.start:]
	return true
}

// filter is a set of hashes that may have too many, and none too few.
type filter [256]uint64

func (f *filter) bit(h kv.SequenceHash) (word *uint64, mask uint64) {
	v := uint64(h) * 0x9e3779b97f4a7c15
	return &f[v>>56], 1 << (v >> 50 & 63)
}

func (f *filter) add(h kv.SequenceHash) {
	word, mask := f.bit(h)
	*word |= mask
}

func (f *filter) has(h kv.SequenceHash) bool {
	word, mask := f.bit(h)
	return *word&mask != 0
}
