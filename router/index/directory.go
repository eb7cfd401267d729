package index

import (
	"math/bits"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// directory finds blocks by sequence hash. It is the writer's alone and usually
// sparse: it knows the ends of what was stored and removed, because that is
// where the next event begins. In dense mode it knows every block.
//
// It is open addressing with backward shifts over slots of {fingerprint, run,
// position}. The fingerprint is the top of the mixed hash and gives the home
// slot, so that entries can be moved without looking at their blocks.
type directory struct {
	slots []uint64
	used  int
}

const (
	positionBits  = 7
	directoryBits = runIDBits + positionBits
	directoryMask = 1<<directoryBits - 1

	minDirectory = 64
	slotBytes    = 8
	// directoryBytes is what a block takes in a directory, which is kept at most
	// three quarters full.
	directoryBytes = slotBytes*4/3 + 1
)

// seed differs from process to process, so that nobody can choose hashes that
// collide.
var seed = rand.Uint64()

func mixHash(h kv.SequenceHash) uint64 {
	v := (uint64(h) ^ seed) * 0x9e3779b97f4a7c15
	return (v ^ v>>32) * 0xd6e8feb86659fd93
}

func directorySlot(h kv.SequenceHash, p place) uint64 {
	return mixHash(h)&^directoryMask | uint64(p.run)<<positionBits | uint64(p.pos)
}

func slotPlace(v uint64) place {
	return place{runID(v >> positionBits & (1<<runIDBits - 1)), int(v & (1<<positionBits - 1))}
}

// newDirectory makes a directory with room for n blocks.
func newDirectory(n int) *directory {
	return &directory{slots: make([]uint64, max(minDirectory, n+n/3+1))}
}

func (d *directory) bytes() int64 { return int64(len(d.slots)) * slotBytes }

// home is the slot where the search for v begins.
func (d *directory) home(v uint64) int {
	hi, _ := bits.Mul64(v&^directoryMask, uint64(len(d.slots)))
	return int(hi)
}

// after is the slot after i.
func (d *directory) after(i int) int {
	if i++; i < len(d.slots) {
		return i
	}
	return 0
}

// lookup is the block with hash h, if the directory knows it.
func (x *Index) lookup(h kv.SequenceHash) (place, bool) {
	d := x.directory
	mixed := mixHash(h)
	for i := d.home(mixed); d.slots[i] != 0; i = d.after(i) {
		if v := d.slots[i]; (v^mixed)>>directoryBits == 0 {
			if p := slotPlace(v); x.holds(p, h) {
				return p, true
			}
		}
	}
	return place{}, false
}

// mark enters a block that must be found again although its neighbours do not
// lead to it.
func (x *Index) mark(p place, h kv.SequenceHash) {
	s := x.runs.side(p.run)
	if s.marks.has(p.pos) {
		return
	}
	s.marks.set(p.pos)
	if !s.listed {
		x.fit(1)
		x.directory.put(directorySlot(h, p))
	}
}

// enlist enters the blocks of a run from position lo on into the directory, if the
// others are there.
func (x *Index) enlist(r runID, lo int) {
	if !x.runs.side(r).listed {
		return
	}
	hashes := x.arena.hashes(x.runs.head(r).storage())
	x.fit(len(hashes) - lo)
	for _, h := range hashes[lo:] {
		x.directory.prefetch(kv.SequenceHash(h))
	}
	for i := lo; i < len(hashes); i++ {
		x.directory.put(directorySlot(kv.SequenceHash(hashes[i]), place{r, i}))
	}
}

// unmark forgets the blocks of a run from position lo on.
func (x *Index) unmark(r runID, lo int) {
	s := x.runs.side(r)
	hashes := x.arena.hashes(x.runs.head(r).storage())
	gone := s.marks.and(spanMask(lo, runBlocks))
	if s.listed {
		gone = spanMask(lo, len(hashes))
		for _, h := range hashes[lo:] {
			x.directory.prefetch(kv.SequenceHash(h))
		}
	}
	for !gone.empty() {
		i := gone.pop()
		x.directory.delete(directorySlot(kv.SequenceHash(hashes[i]), place{r, i}))
	}
	s.marks = s.marks.and(spanMask(0, lo))
}

// fit makes room for n more blocks in the directory. It grows by half, or by
// what is needed where memory is short.
func (x *Index) fit(n int) {
	d := x.directory
	want := d.used + n
	if 4*want <= 3*len(d.slots) {
		return
	}
	if half := want / 2; x.mayGrow(int64(half) * directoryBytes) {
		want += half
	} else {
		want += want / 16
	}
	fresh := newDirectory(want)
	for _, v := range d.slots {
		if v != 0 {
			fresh.put(v)
		}
	}
	x.directory = fresh
}

// prefetch has the slot where the search for h begins brought near.
func (d *directory) prefetch(h kv.SequenceHash) { prefetchSlot(&d.slots[d.home(mixHash(h))]) }

// maxAlike is how many slots with one fingerprint the directory takes: more come
// only from somebody who gives one hash to many blocks, and they would make all
// searches long.
const maxAlike = 8

// put enters a slot. There must be room.
func (d *directory) put(v uint64) {
	alike := 0
	i := d.home(v)
	for d.slots[i] != 0 {
		if (d.slots[i]^v)>>directoryBits == 0 {
			if alike++; alike == maxAlike {
				return
			}
		}
		i = d.after(i)
	}
	d.slots[i] = v
	d.used++
}

// delete takes out a slot, if it is there, and closes the gap.
func (d *directory) delete(v uint64) {
	i := d.home(v)
	for d.slots[i] != v {
		if d.slots[i] == 0 {
			return
		}
		i = d.after(i)
	}
	d.used--
	for gap := i; ; {
		i = d.after(i)
		v := d.slots[i]
		if v == 0 {
			d.slots[gap] = 0
			return
		}
		// v may move to the gap unless its home lies behind the gap.
		if d.distance(d.home(v), i) >= d.distance(gap, i) {
			d.slots[gap] = v
			gap = i
		}
	}
}

// distance is how many steps it takes from one slot to another.
func (d *directory) distance(from, to int) int {
	if to < from {
		to += len(d.slots)
	}
	return to - from
}
