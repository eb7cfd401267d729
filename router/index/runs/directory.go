package runs

import (
	"math/bits"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Directory finds blocks by sequence hash. It is for the writer only. A sparse
// directory has the blocks where stores and removals ended, because the next event
// begins there. A dense directory has every block.
//
// The directory is a hash table with linear probing over slots of {fingerprint, run,
// position}; 0 is an empty slot. The fingerprint is the top of the mixed hash. It gives the
// home slot, where a search begins, so that slots move without a look at their blocks.
type Directory struct {
	slots []uint64
	used  int
}

const (
	positionBits  = 7
	directoryBits = idBits + positionBits
	directoryMask = 1<<directoryBits - 1

	minDirectory = 64
	slotBytes    = 8
	// DirectoryBytes is the memory of one block in a directory. A directory is at
	// most three quarters full.
	DirectoryBytes = slotBytes*4/3 + 1
)

// seed differs from process to process, so that nobody can choose hashes that
// collide.
var seed = rand.Uint64()

// Mix returns a hash of h that differs from process to process.
func Mix(h kv.SequenceHash) uint64 {
	v := (uint64(h) ^ seed) * 0x9e3779b97f4a7c15
	return (v ^ v>>32) * 0xd6e8feb86659fd93
}

// directorySlot packs the place of a block below the leading bits of its mixed hash.
func directorySlot(h kv.SequenceHash, p Place) uint64 {
	return Mix(h)&^directoryMask | uint64(p.Run)<<positionBits | uint64(p.Pos)
}

func slotPlace(v uint64) Place {
	return Place{ID(v >> positionBits & (1<<idBits - 1)), int(v & (1<<positionBits - 1))}
}

// NewDirectory returns an empty directory with room for n blocks.
func NewDirectory(n int) *Directory {
	return &Directory{slots: make([]uint64, max(minDirectory, n+n/3+1))}
}

// Bytes returns the memory of the directory.
func (d *Directory) Bytes() int64 { return int64(len(d.slots)) * slotBytes }

// Len returns the number of blocks.
func (d *Directory) Len() int { return d.used }

// IdleBytes returns the memory for blocks that the directory does not have yet.
func (d *Directory) IdleBytes() int64 { return int64(max(len(d.slots)-d.used*4/3, 0)) * slotBytes }

// Fits reports whether there is room for n more blocks.
func (d *Directory) Fits(n int) bool { return 4*(d.used+n) <= 3*len(d.slots) }

// Grown returns a directory with the same blocks and room for at least n more. The room is
// half as much again as needed, so that the directory seldom grows. Where mayGrow refuses
// the bytes, it is 1/16 more. d stays as it was.
func (d *Directory) Grown(n int, mayGrow func(bytes int64) bool) *Directory {
	want := d.used + n
	if half := want / 2; mayGrow(int64(half) * DirectoryBytes) {
		want += half
	} else {
		want += want / 16
	}
	fresh := NewDirectory(want)
	for _, v := range d.slots {
		if v != 0 {
			fresh.put(v)
		}
	}
	return fresh
}

// home returns the slot where the search for v begins: the fingerprint of v as a fraction of
// the number of slots.
func (d *Directory) home(v uint64) int {
	hi, _ := bits.Mul64(v&^directoryMask, uint64(len(d.slots)))
	return int(hi)
}

// after returns the slot after i.
func (d *Directory) after(i int) int {
	if i++; i < len(d.slots) {
		return i
	}
	return 0
}

// Lookup returns the place of the block of t with hash h. ok is false when the directory does
// not have the block.
func (d *Directory) Lookup(t *Tree, h kv.SequenceHash) (p Place, ok bool) {
	mixed := Mix(h)
	for i := d.home(mixed); d.slots[i] != 0; i = d.after(i) {
		// Other hashes may have the same fingerprint, so compare the block's own hash too.
		if v := d.slots[i]; (v^mixed)>>directoryBits == 0 {
			if p = slotPlace(v); t.HasHash(p, h) {
				return p, true
			}
		}
	}
	return Place{}, false
}

// Prefetch loads the slot where the search for h begins into the cache.
func (d *Directory) Prefetch(h kv.SequenceHash) { prefetchSlot(&d.slots[d.home(Mix(h))]) }

// Guess appends to places, for each hash, the place that Lookup most likely returns, None for a hash that the
// directory does not have. Callers check places with HasHash. Guess loads into the cache what the check and a change
// of these blocks of t read. Each step needs what the step before has asked for, so that the waits of all blocks overlap.
func (d *Directory) Guess(t *Tree, hashes []kv.SequenceHash, places []Place) []Place {
	for _, h := range hashes {
		d.Prefetch(h)
	}
	for _, h := range hashes {
		p := d.guess(h)
		places = append(places, p)
		if p.Run != None {
			t.prefetchRun(p.Run)
		}
	}
	for _, p := range places {
		if p.Run != None {
			t.prefetchHashes(p)
		}
	}
	return places
}

// guess returns the place of the first slot with the fingerprint of h, without a look at the block.
func (d *Directory) guess(h kv.SequenceHash) Place {
	mixed := Mix(h)
	for i := d.home(mixed); d.slots[i] != 0; i = d.after(i) {
		if (d.slots[i]^mixed)>>directoryBits == 0 {
			return slotPlace(d.slots[i])
		}
	}
	return Place{}
}

// maxAlike is the most slots with one fingerprint. Honest hashes never reach it:
// more come only from a publisher that gives one hash to many blocks, and would
// make all searches long.
const maxAlike = 8

// Put enters a block. There must be room.
func (d *Directory) Put(h kv.SequenceHash, p Place) { d.put(directorySlot(h, p)) }

// put writes v, a fingerprint of a block's hash with the block's place, into the first empty
// slot from the home of v on. It enters no more than maxAlike values of one fingerprint: a
// publisher that gives one hash to many blocks must not make searches long.
func (d *Directory) put(v uint64) {
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

// Delete takes out a block if the directory has it.
func (d *Directory) Delete(h kv.SequenceHash, p Place) { d.delete(directorySlot(h, p)) }

// delete removes slot value v, a fingerprint with a place, if the directory has it. Then it
// moves later values back into the gap, because a search ends at the first empty slot.
func (d *Directory) delete(v uint64) {
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
		next := d.slots[i]
		if next == 0 {
			d.slots[gap] = 0
			return
		}
		// A search for next begins at its home. It passes the gap only if the home is at
		// the gap or before it.
		if d.distance(d.home(next), i) >= d.distance(gap, i) {
			d.slots[gap] = next
			gap = i
		}
	}
}

// distance returns the number of steps from one slot to another. A search goes from the last
// slot to the first.
func (d *Directory) distance(from, to int) int {
	if to < from {
		to += len(d.slots)
	}
	return to - from
}

// Named is the set of hashes that a removed event names in no order. The writer walks the runs from one
// of these blocks on, and asks of each block on the way whether the event names the block. That is
// cheaper than a search for each hash, because most events name the end of one sequence.
//
// The set is a hash table with linear probing, small enough for the first cache. The zero value is
// an empty set.
type Named struct {
	hashes []kv.SequenceHash
	// slots has 1 plus an index into hashes, or 0. open has an element for each hash: true until
	// the hash is taken.
	slots [2 * MaxNamed]uint16
	open  [MaxNamed]bool
	// shift brings a mixed hash down to its home slot.
	shift uint
}

// MaxNamed bounds the hashes of one set. An event with more is removed in parts.
const MaxNamed = 512

// Fill makes n the set of 1..MaxNamed hashes, of which none is taken. The caller keeps hashes until
// the next Fill. Fill calls twice with each hash that was there before; it is open once.
func (n *Named) Fill(hashes []kv.SequenceHash, twice func(h kv.SequenceHash)) {
	n.hashes = hashes
	log := bits.Len(uint(2*len(hashes) - 1))
	n.shift = uint(64 - log)
	clear(n.slots[:1<<log])
	for i, h := range hashes {
		at, found := n.slot(h)
		n.open[i] = !found
		if found {
			twice(h)
			continue
		}
		n.slots[at] = uint16(i + 1)
	}
}

// slot returns the slot of h, or else the empty slot where h belongs.
func (n *Named) slot(h kv.SequenceHash) (at int, found bool) {
	last := 1<<(64-n.shift) - 1
	for at = int(Mix(h) >> n.shift); ; at = (at + 1) & last {
		i := n.slots[at]
		if i == 0 {
			return at, false
		}
		if n.hashes[i-1] == h {
			return at, true
		}
	}
}

// Take takes h out of the set. It returns false when h is not in the set, or was taken before.
func (n *Named) Take(h kv.SequenceHash) bool {
	at, found := n.slot(h)
	if !found {
		return false
	}
	i := int(n.slots[at] - 1)
	was := n.open[i]
	n.Close(i)
	return was
}

// Open reports whether hash number i was not taken yet.
func (n *Named) Open(i int) bool { return n.open[i] }

// Close takes hash number i out of the set.
func (n *Named) Close(i int) { n.open[i] = false }
