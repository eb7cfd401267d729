package mirror

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// name is a LoRA adapter and a salt. Blocks with different names never share a hash.
type name struct{ lora, salt string }

const (
	// maxNameBytes bounds the names of a rank. Clients choose the salts.
	maxNameBytes = 64 << 20
	// nameBytes is the memory of a name without its texts.
	nameBytes = 192
)

func (n name) bytes() int { return nameBytes + len(n.lora) + len(n.salt) }

// names gives each name of a rank's blocks a number. Number 0 is the empty name: no
// adapter and no salt. A name without blocks is freed, so there are at most as many names
// as blocks.
type names struct {
	numbers map[name]uint32
	list    []namedBlocks
	free    []uint32
	bytes   int // at most maxNameBytes
}

// namedBlocks is a name, its hash seed and the number of blocks with it.
type namedBlocks struct {
	name
	seed   uint64
	blocks uint32
}

func newNames() names {
	return names{numbers: make(map[name]uint32), list: []namedBlocks{{seed: kv.LocalSeed("", "")}}}
}

// number returns the number of name n (a LoRA adapter and a salt), and adds n if no block has it
// yet. The caller then calls retain for a block, or freeUnused if no block gets the name. ok is
// false when maxNameBytes leave no room for another name. Number 0 is the empty name.
func (t *names) number(n name) (i uint32, ok bool) {
	if n == (name{}) {
		return 0, true
	}
	if i, ok := t.numbers[n]; ok {
		return i, true
	}
	if t.bytes+n.bytes() > maxNameBytes {
		return 0, false
	}
	t.bytes += n.bytes()
	named := namedBlocks{name: n, seed: kv.LocalSeed(n.lora, n.salt)}
	i = uint32(len(t.list)) // numbers of freed names are used again
	if free := len(t.free); free > 0 {
		i, t.free = t.free[free-1], t.free[:free-1]
		t.list[i] = named
	} else {
		t.list = append(t.list, named)
	}
	t.numbers[n] = i
	return i, true
}

// retain counts one more block with name i.
func (t *names) retain(i uint32) { t.list[i].blocks++ }

// release counts one block less with name i, and frees the name after its last block.
func (t *names) release(i uint32) {
	t.list[i].blocks--
	t.freeUnused(i)
}

// freeUnused frees name i if no block has it.
func (t *names) freeUnused(i uint32) {
	named := &t.list[i]
	if i == 0 || named.blocks > 0 {
		return
	}
	t.bytes -= named.bytes()
	delete(t.numbers, named.name)
	*named = namedBlocks{}
	t.free = append(t.free, i)
}
