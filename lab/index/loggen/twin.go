package loggen

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Twin is a naive index: for each block the set of engines that hold it.
type Twin struct {
	engines int
	holders map[kv.SequenceHash][]uint64
	pairs   uint64

	live   []uint64
	depths []uint32
}

// NewTwin returns a twin of engines that hold nothing.
func NewTwin(engines int) *Twin {
	return &Twin{
		engines: engines, holders: make(map[kv.SequenceHash][]uint64),
		live: make([]uint64, (engines+63)/64), depths: make([]uint32, engines),
	}
}

// Store records that engine holds blocks. A block that it holds already is an error.
func (t *Twin) Store(engine uint32, blocks []kvevent.StoredBlock) error {
	word, bit := engine/64, uint64(1)<<(engine%64)
	for _, b := range blocks {
		set := t.holders[b.Hash]
		if set == nil {
			set = make([]uint64, len(t.live))
			t.holders[b.Hash] = set
		}
		if set[word]&bit != 0 {
			return fmt.Errorf("engine %d stores block %#x twice", engine, b.Hash)
		}
		set[word] |= bit
		t.pairs++
	}
	return nil
}

// Remove records that engine holds blocks no longer. A block that it did not hold is an error.
func (t *Twin) Remove(engine uint32, hashes []kv.SequenceHash) error {
	word, bit := engine/64, uint64(1)<<(engine%64)
	for _, h := range hashes {
		set := t.holders[h]
		if set == nil || set[word]&bit == 0 {
			return fmt.Errorf("engine %d removes block %#x, which it does not hold", engine, h)
		}
		set[word] &^= bit
		t.pairs--
		if !slices.ContainsFunc(set, func(w uint64) bool { return w != 0 }) {
			delete(t.holders, h)
		}
	}
	return nil
}

// Memberships returns the number of (block, engine) pairs.
func (t *Twin) Memberships() uint64 { return t.pairs }

// Distinct returns the number of different blocks held.
func (t *Twin) Distinct() uint64 { return uint64(len(t.holders)) }

// Depths returns the number of leading blocks of a prompt that each engine holds. The
// slice is valid until the next call.
func (t *Twin) Depths(seq []kv.SequenceHash) []uint32 {
	clear(t.depths)
	for i := range t.engines {
		t.live[i/64] |= 1 << (i % 64)
	}
	// live has a bit for each engine that holds all blocks so far.
	for at, h := range seq {
		set := t.holders[h]
		alive := false
		for w := range t.live {
			now := uint64(0)
			if set != nil {
				now = t.live[w] & set[w]
			}
			t.end(w, t.live[w]&^now, at)
			t.live[w] = now
			alive = alive || now != 0
		}
		if !alive {
			return t.depths
		}
	}
	for w, left := range t.live {
		t.end(w, left, len(seq))
	}
	return t.depths
}

// end records the depth of the engines of one word whose match ends here.
func (t *Twin) end(word int, engines uint64, depth int) {
	for ; engines != 0; engines &= engines - 1 {
		t.depths[64*word+bits.TrailingZeros64(engines)] = uint32(depth)
	}
}

// sum returns the sum of the engines' depths, the greatest depth, and the first engine that has it.
func sum(depths []uint32) (total, best uint64, deepest int) {
	for i, d := range depths {
		total += uint64(d)
		if uint64(d) > best {
			best, deepest = uint64(d), i
		}
	}
	return total, best, deepest
}
