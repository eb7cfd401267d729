package tokens

import "github.com/blockyard-ai/blockyard/internal/kv"

// slabChunk is the number of elements that a slab allocates at once.
const slabChunk = 4096

// slab hands out numbered elements and takes them back. Elements do not move. Memory is
// never given back.
type slab[T any] struct {
	chunks [][]T
	free   []uint32
	used   uint32 // elements handed out for the first time
}

func (s *slab[T]) at(i uint32) *T { return &s.chunks[i/slabChunk][i%slabChunk] }

// take returns the number of an unused element, which has the zero value.
func (s *slab[T]) take() uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i
	}
	i := s.used
	if s.used++; int(i/slabChunk) == len(s.chunks) {
		s.chunks = append(s.chunks, make([]T, slabChunk))
	}
	return i
}

// give takes back element i.
func (s *slab[T]) give(i uint32) {
	var zero T
	*s.at(i) = zero
	s.free = append(s.free, i)
}

// name is the adapter, salt and block size that many blocks share.
type name struct {
	lora, salt string
	blockSize  uint32
}

func (n *name) bytes() int { return nameBytes + len(n.lora) + len(n.salt) }

// nameTable holds each name once, while blocks have it.
type nameTable struct {
	index map[name]uint32
	slab[namedBlocks]
}

type namedBlocks struct {
	name
	blocks uint32
}

// hold counts one more block with name n. It returns the name's number, and the bytes that the
// name takes if no other block has it, else 0.
func (t *nameTable) hold(n name) (i uint32, grown int) {
	i, known := t.index[n]
	if !known {
		i, grown = t.take(), n.bytes()
		t.at(i).name = n
		t.index[n] = i
	}
	t.at(i).blocks++
	return i, grown
}

// leave counts one block less with name i. After the last one it frees the name and returns the
// name's bytes, else 0.
func (t *nameTable) leave(i uint32) (freed int) {
	n := t.at(i)
	if n.blocks--; n.blocks > 0 {
		return 0
	}
	freed = n.bytes()
	delete(t.index, n.name)
	t.give(i)
	return freed
}

// cellsFor returns the number of cells for that many words.
func cellsFor(words int) int { return (words + cellWords - 1) / cellWords }

// shrinkLocked evicts blocks without references until need bytes are free. The block released
// longest ago goes first. False means that only retained blocks are left.
func (t *Table) shrinkLocked(need int) bool {
	for t.bytes+need > t.maxBytes {
		if t.oldest == none {
			return false
		}
		t.stats.Evicted++
		i := t.oldest
		t.unlinkLocked(i)
		t.dropLocked(i)
	}
	return true
}

// addEntryLocked adds a block without tokens and returns the number of its entry. The caller
// retains the block, or adds it to the list of blocks without references.
func (t *Table) addEntryLocked(h kv.SequenceHash) uint32 {
	i := t.entries.take()
	*t.entries.at(i) = entry{hash: h, first: none, name: none}
	t.index[h] = i
	t.withoutTokens++
	return i
}

// fillLocked adds tokens, the hashes of multimodal objects and a name's number to an entry
// without tokens. BlockTokens has made room for them.
func (t *Table) fillLocked(e *entry, name uint32, tokens []uint32, objects []uint64) {
	t.withoutTokens--
	t.bytes += entryBytes
	e.name, e.tokens, e.objects = name, uint16(len(tokens)), uint16(len(objects))
	w := cellWriter{table: t, link: &e.first, at: cellWords} // as if a cell were full
	for _, v := range tokens {
		w.write(v)
	}
	for _, v := range objects {
		w.write(uint32(v >> 32))
		w.write(uint32(v))
	}
}

// cellWriter appends words to a chain of cells.
type cellWriter struct {
	table *Table
	link  *uint32 // where the number of the next cell goes
	cell  *cell
	at    int
}

// write appends a word to the chain. A full cell gets a new one behind it.
func (w *cellWriter) write(v uint32) {
	if w.at == cellWords {
		i := w.table.cells.take()
		w.table.bytes += cellBytes
		*w.link = i
		w.cell, w.at = w.table.cells.at(i), 0
		w.cell.next = none
		w.link = &w.cell.next
	}
	w.cell.words[w.at] = v
	w.at++
}

// wordsLocked appends an entry's tokens, and then its objects as two words each, to dst.
func (t *Table) wordsLocked(dst []uint32, e *entry) []uint32 {
	left := int(e.tokens) + 2*int(e.objects)
	for c := e.first; left > 0; {
		cell := t.cells.at(c)
		n := min(left, cellWords)
		dst = append(dst, cell.words[:n]...)
		left -= n
		c = cell.next
	}
	return dst
}

// joinWords makes a number of each pair of words, high word first.
func joinWords(words []uint32) []uint64 {
	numbers := make([]uint64, len(words)/2)
	for i := range numbers {
		numbers[i] = uint64(words[2*i])<<32 | uint64(words[2*i+1])
	}
	return numbers
}

// dropLocked forgets the block of entry i, with its tokens if it has any. The entry must have left
// the list of blocks without references.
func (t *Table) dropLocked(i uint32) {
	e := t.entries.at(i)
	for c := e.first; c != none; { // the tokens lie in a list of cells
		next := t.cells.at(c).next
		t.cells.give(c)
		t.bytes -= cellBytes
		c = next
	}
	if e.name != none { // the block has tokens
		t.bytes -= t.names.leave(e.name) + entryBytes
	} else {
		t.withoutTokens--
	}
	delete(t.index, e.hash)
	t.entries.give(i)
}

// usedLocked makes an entry without references the youngest.
func (t *Table) usedLocked(i uint32) {
	if t.entries.at(i).refs == 0 {
		t.unlinkLocked(i)
		t.linkLocked(i)
	}
}

// linkLocked adds an entry to the list of blocks without references, as the youngest: the last
// to be evicted.
func (t *Table) linkLocked(i uint32) {
	e := t.entries.at(i)
	e.older, e.younger = t.youngest, none
	if t.youngest == none {
		t.oldest = i
	} else {
		t.entries.at(t.youngest).younger = i
	}
	t.youngest = i
}

// unlinkLocked removes an entry from the list of blocks without references.
func (t *Table) unlinkLocked(i uint32) {
	e := t.entries.at(i)
	if e.older == none {
		t.oldest = e.younger
	} else {
		t.entries.at(e.older).younger = e.younger
	}
	if e.younger == none {
		t.youngest = e.older
	} else {
		t.entries.at(e.younger).older = e.older
	}
}
