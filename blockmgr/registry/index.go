package registry

import "github.com/blockyard-ai/blockyard/internal/kv"

const (
	homeBits     = 10
	segmentWords = 1 << homeBits
	// segmentLimit keeps probes short, and leaves an empty word for every probe
	// to stop at.
	segmentLimit = segmentWords * 3 / 4
	// maxDepth keeps the bits that choose the segment apart from those that
	// choose the home in it.
	maxDepth = 32 - homeBits
	// directoryRatio bounds the directory's entries per segment. Evenly spread fingerprints
	// need one or two.
	directoryRatio = 8
	// chunkSegments is the number of segments that are allocated at once: 64 KiB.
	chunkSegments = 8
)

// word is a fingerprint above an id plus one; zero is an empty word.
type word uint64

func makeWord(fp uint32, id ID) word { return word(fp)<<32 | word(id+1) }

func (w word) fingerprint() uint32 { return uint32(w >> 32) }
func (w word) id() ID              { return ID(w) - 1 }

// segment is a hash table with linear probing. At most segmentLimit of its
// words are in use.
type segment [segmentWords]word

// home returns the first position of the probe for a fingerprint, follow the next position.
func home(fp uint32) uint32   { return fp % segmentWords }
func follow(at uint32) uint32 { return (at + 1) % segmentWords }

// insert adds a word. The segment has fewer than segmentLimit words.
func (s *segment) insert(w word) {
	at := home(w.fingerprint())
	for s[at] != 0 {
		at = follow(at)
	}
	s[at] = w
}

// candidate returns the first id with the fingerprint, None when there is none. Its key may differ
// from the one that is looked up. first is the word at the fingerprint's home: the caller has read
// that word before, see findBatch.
func (s *segment) candidate(fp uint32, first word) ID {
	at := home(fp)
	for w := first; w != 0; w = s[at] {
		if w.fingerprint() == fp {
			return w.id()
		}
		at = follow(at)
	}
	return None
}

// remove removes a word and shifts back the words that were displaced by it. It returns false
// when the segment does not have the word.
func (s *segment) remove(w word) bool {
	hole := home(w.fingerprint())
	for s[hole] != w {
		if s[hole] == 0 {
			return false
		}
		hole = follow(hole)
	}
	for at := follow(hole); s[at] != 0; at = follow(at) {
		// Compares the word's distances from its home and from the hole. A word whose home
		// is behind the hole must not move into the hole: no probe would find it there.
		if (at-home(s[at].fingerprint()))%segmentWords >= (at-hole)%segmentWords {
			s[hole] = s[at]
			hole = at
		}
	}
	s[hole] = 0
	return true
}

// segmentState describes a segment.
type segmentState struct {
	// next is the segment that continues this one, 0 when there is none: segment 0
	// continues nothing.
	next uint32
	used uint16
	// depth is the number of leading bits that all fingerprints of the segment share.
	depth uint8
}

// index finds ids by the fingerprints of their keys. Different keys may have one fingerprint.
type index struct {
	// dir is indexed by the top depth bits of a fingerprint and names segments.
	dir    []uint32
	depth  uint8
	chunks []*[chunkSegments]segment
	states []segmentState
	// continued counts the segments that continue another segment.
	continued int
}

func newIndex() index {
	var ix index
	ix.dir = []uint32{ix.grow(0)}
	return ix
}

// expectedWords is the average number of words of a segment for expect. It is so far below
// segmentLimit that segments hardly ever exceed segmentLimit.
const expectedWords = segmentLimit * 5 / 6

// expect gives an index without entries as many segments as it will need.
func (ix *index) expect(entries int) {
	var depth uint8
	for entries>>depth > expectedWords && depth < maxDepth {
		depth++
	}
	if depth <= ix.depth {
		return
	}
	*ix = index{depth: depth, dir: make([]uint32, 1<<depth)} // a segment for each entry
	for i := range ix.dir {
		ix.dir[i] = ix.grow(depth)
	}
}

// grow makes an empty segment, for fingerprints that share depth leading bits, and returns its
// number.
func (ix *index) grow(depth uint8) uint32 {
	s := uint32(len(ix.states))
	if s%chunkSegments == 0 {
		ix.chunks = append(ix.chunks, new([chunkSegments]segment))
	}
	ix.states = append(ix.states, segmentState{depth: depth})
	return s
}

func (ix *index) segment(s uint32) *segment { return &ix.chunks[s/chunkSegments][s%chunkSegments] }

// root returns the segment in which the search for a fingerprint begins.
func (ix *index) root(fp uint32) uint32 { return ix.dir[fp>>(32-ix.depth)] }

// find returns the id of key, whose fingerprint is fp, None when there is none. Equal fingerprints are
// told apart by the keys in entries. It also searches the segments that continue a full one.
func (ix *index) find(fp uint32, key *kv.StoredKey, entries *slab) ID {
	s := ix.root(fp)
	for {
		seg := ix.segment(s)
		for at := home(fp); seg[at] != 0; at = follow(at) {
			if w := seg[at]; w.fingerprint() == fp && entries.at(w.id()).Key == *key {
				return w.id()
			}
		}
		if s = ix.states[s].next; s == 0 {
			return None
		}
	}
}

// insert adds an id that is not in the index. fp is the fingerprint of its key. A full segment is
// split. One that may not be split is continued in another segment.
func (ix *index) insert(fp uint32, id ID) {
	s := ix.root(fp)
	for ix.states[s].used == segmentLimit && ix.split(s, fp) {
		s = ix.root(fp) // the half that fp belongs to, which may be full again
	}
	for ix.states[s].used == segmentLimit {
		if ix.states[s].next == 0 {
			next := ix.grow(ix.states[s].depth)
			ix.states[s].next = next
			ix.continued++
		}
		s = ix.states[s].next
	}
	ix.segment(s).insert(makeWord(fp, id))
	ix.states[s].used++
}

// remove takes out an id that is in the index. fp is the fingerprint of its key.
func (ix *index) remove(fp uint32, id ID) {
	w := makeWord(fp, id)
	s := ix.root(fp)
	for !ix.segment(s).remove(w) {
		if s = ix.states[s].next; s == 0 {
			panic("BUG: the registry's index lacks an entry")
		}
	}
	ix.states[s].used--
}

// split moves the words of segment s with the next bit of the fingerprint set into a new
// segment. It returns false when the segment may not be split. fp is a fingerprint of s.
func (ix *index) split(s, fp uint32) bool {
	depth := ix.states[s].depth
	if depth == maxDepth || ix.states[s].next != 0 {
		return false
	}
	if depth == ix.depth {
		if 2*len(ix.dir) > directoryRatio*len(ix.states) {
			return false // fingerprints are spread unevenly: the directory would grow without bound
		}
		ix.double()
	}
	t := ix.grow(depth + 1) // the new segment
	ix.states[s] = segmentState{depth: depth + 1}
	low, high := ix.segment(s), ix.segment(t) // for fingerprints with the next bit 0 and 1
	words := *low
	clear(low[:])
	for _, w := range words {
		switch {
		case w == 0:
		case w.fingerprint()<<depth>>31 == 0:
			low.insert(w)
			ix.states[s].used++
		default:
			high.insert(w)
			ix.states[t].used++
		}
	}
	// The directory has an entry for the segment for each index that begins with the bits
	// that the segment's fingerprints share. The upper half goes to the new segment.
	entries := len(ix.dir) >> depth
	from := int(fp>>(32-depth)) * entries
	for i := from + entries/2; i < from+entries; i++ {
		ix.dir[i] = t
	}
	return true
}

// double doubles the directory: each entry becomes two equal ones.
func (ix *index) double() {
	dir := make([]uint32, 2*len(ix.dir))
	for i, s := range ix.dir {
		dir[2*i], dir[2*i+1] = s, s
	}
	ix.dir = dir
	ix.depth++
}
