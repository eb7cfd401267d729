package miss

import (
	"math"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Memory remembers the blocks that left the indexes of a router lately. Make one with NewMemory.
type Memory struct {
	start time.Time

	mu      sync.Mutex
	buckets []bucket
	mask    uint64
	owners  ownerTable
	late    lateStores
	// removals counts remembered blocks, forgotten those whose place a newer block took.
	removals, forgotten uint64
}

// bucket has the places for the blocks of one residue of the hash.
type bucket [4]record

// record is one block that left an owner. The zero record is none.
type record struct {
	hash  kv.SequenceHash
	at    int64 // nanoseconds since Memory.start, above 0
	owner uint32
	late  uint16 // milliseconds from the publication of the event to its arrival
	tier  kv.Tier
	// dropped is true when all blocks of the owner left at once.
	dropped bool
}

const recordBytes = 24

// NewMemory returns an empty Memory with room for at least the given number of blocks. now is the time of the first event or earlier.
func NewMemory(blocks int, now time.Time) *Memory {
	n := 1
	for n*len(bucket{}) < blocks {
		n *= 2
	}
	return &Memory{start: now, buckets: make([]bucket, n), mask: uint64(n - 1), owners: newOwnerTable()}
}

// History is the part of a Memory that has the blocks of one model.
type History struct {
	memory *Memory
}

// Of returns the History of a new model. Its blocks are apart from those of other models.
func (m *Memory) Of() *History { return &History{memory: m} }

// Moment is when an event reached the router. Late is by how much its message was slower than the
// fastest of the publisher's messages, so that At minus Late is about when the event was published.
type Moment struct {
	At   time.Time
	Late time.Duration
}

// Resolution is how exactly a publisher says when it published an event.
const Resolution = 2 * time.Millisecond

// Removed remembers that blocks of a tier left an owner.
func (h *History) Removed(o kv.Owner, t kv.Tier, blocks []kv.SequenceHash, when Moment) {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.recordLocked(h, o, t, when)
	for _, b := range blocks {
		r.hash = b
		m.addLocked(&r)
	}
}

// Stored remembers the blocks of an event that came late. Other events need no memory: the index
// had their blocks at once.
func (h *History) Stored(o kv.Owner, t kv.Tier, blocks []kvevent.StoredBlock, when Moment) {
	if when.Late < Resolution {
		return
	}
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late.add(m.recordLocked(h, o, t, when), blocks)
}

// Holder visits blocks of an owner, tier by tier, until it has visited about most blocks;
// *index.Index implements it.
type Holder interface {
	VisitOwner(o kv.Owner, most int, visit func(t kv.Tier, blocks []kvevent.StoredBlock))
}

// Dropped remembers that an owner loses all its blocks at once: its engine cleared them, or it left.
// Call it before the index drops them. Of a very large owner only as many blocks are remembered as
// fill a quarter of the Memory.
func (h *History) Dropped(o kv.Owner, x Holder, when Moment) {
	h.visit(o, x, when, true)
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owners.drop(ownerKey{h, o}, m.nanos(when.At))
}

// Replaced remembers that a dump replaces the blocks of an owner, some of which may be gone. Call it
// before the index replaces them. Only as many blocks are remembered as Dropped remembers.
func (h *History) Replaced(o kv.Owner, x Holder, when Moment) { h.visit(o, x, when, false) }

// visit remembers the blocks that an owner has now.
func (h *History) visit(o kv.Owner, x Holder, when Moment, dropped bool) {
	m := h.memory
	x.VisitOwner(o, len(m.buckets), func(t kv.Tier, blocks []kvevent.StoredBlock) {
		m.mu.Lock()
		defer m.mu.Unlock()
		r := m.recordLocked(h, o, t, when)
		r.dropped = dropped
		for i := range blocks {
			r.hash = blocks[i].Hash
			m.addLocked(&r)
		}
	})
}

// recordLocked returns a record without a block. The caller holds m.mu.
func (m *Memory) recordLocked(h *History, o kv.Owner, t kv.Tier, when Moment) record {
	return record{
		at: m.nanos(when.At), owner: m.owners.id(ownerKey{h, o}), tier: t,
		late: uint16(min(when.Late/time.Millisecond, math.MaxUint16)),
	}
}

// nanos returns a time as records have it.
func (m *Memory) nanos(t time.Time) int64 { return max(1, int64(t.Sub(m.start))) }

// addLocked puts a record in the place of the oldest one of its bucket. The caller holds m.mu.
func (m *Memory) addLocked(r *record) {
	b := &m.buckets[uint64(r.hash)&m.mask]
	// Without a loop, because this is done for each removed block.
	oldest, other := &b[0], &b[2]
	if b[1].at < oldest.at {
		oldest = &b[1]
	}
	if b[3].at < other.at {
		other = &b[3]
	}
	if other.at < oldest.at {
		oldest = other
	}
	m.removals++
	if oldest.at != 0 {
		m.forgotten++
	}
	*oldest = *r
}

// departure is how a block left an owner.
type departure struct {
	owner   kv.Owner
	tier    kv.Tier
	at      time.Time
	late    time.Duration
	dropped bool
}

// published returns about when the owner's publisher told of the departure.
func (d *departure) published() time.Time { return d.at.Add(-d.late) }

// last returns the newest departure of a block that fits.
func (h *History) last(block kv.SequenceHash, fits func(d *departure) bool) (found departure, ok bool) {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.buckets[uint64(block)&m.mask] {
		if r.hash != block || r.at == 0 || ok && !m.start.Add(time.Duration(r.at)).After(found.at) {
			continue
		}
		if d, known := h.departureLocked(&r); known && fits(&d) {
			found, ok = d, true
		}
	}
	return found, ok
}

// departureLocked returns a record as a departure. It returns false for the record of another model
// or of an owner that was forgotten. The caller holds the memory's lock.
func (h *History) departureLocked(r *record) (departure, bool) {
	key, known := h.memory.owners.of(r.owner)
	return departure{
		owner: key.owner, tier: r.tier, at: h.memory.start.Add(time.Duration(r.at)),
		late: time.Duration(r.late) * time.Millisecond, dropped: r.dropped,
	}, known && key.model == h
}

// droppedSince reports whether an owner lost all its blocks after a time, and when.
func (h *History) droppedSince(o kv.Owner, since time.Time) (at time.Time, ok bool) {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.owners.droppedAt(ownerKey{h, o})
	return m.start.Add(time.Duration(n)), n != 0 && n >= m.nanos(since)
}

// storedLate returns the newest late store of a block that came after a time and fits.
func (h *History) storedLate(block kv.SequenceHash, since time.Time, fits func(d *departure) bool) (found departure, ok bool) {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late.find(block, m.nanos(since), func(r *record) bool {
		found, ok = h.departureLocked(r)
		ok = ok && fits(&found)
		return ok
	})
	return found, ok
}

// Stats are the numbers of a Memory. The metric names follow "blockyard_router_".
type Stats struct {
	Removals  uint64 `metric:"miss_removals" help:"Blocks that left the index and are remembered to explain misses."`
	Forgotten uint64 `metric:"miss_removals_forgotten" help:"Remembered blocks that newer ones replaced. Later misses of them count as new content."`
	Bytes     int    `metric:"miss_memory_bytes" help:"Memory of the blocks that left the index, in bytes."`
}

// Stats returns the numbers of the moment.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{Removals: m.removals, Forgotten: m.forgotten, Bytes: len(m.buckets) * len(bucket{}) * recordBytes}
}
