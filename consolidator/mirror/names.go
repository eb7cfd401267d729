package mirror

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// name is the LoRA adapter and the salt of some blocks.
type name struct{ lora, salt string }

const (
	// maxNameBytes bounds the names of a rank. Clients choose the salts.
	maxNameBytes = 64 << 20
	// nameBytes is what a name costs besides its texts.
	nameBytes = 192
)

func (n name) bytes() int { return nameBytes + len(n.lora) + len(n.salt) }

// names numbers the names of a rank's blocks. Number 0 is neither adapter nor salt.
// There are at most as many as there are blocks.
type names struct {
	numbers map[name]uint32
	list    []namedBlocks
	free    []uint32
	bytes   int // at most maxNameBytes
}

// namedBlocks are the blocks with one name.
type namedBlocks struct {
	name
	seed   uint64
	blocks uint32
}

func newNames() names {
	return names{numbers: make(map[name]uint32), list: []namedBlocks{{seed: kv.LocalSeed("", "")}}}
}

// number returns the number of n; false when there is no room for one more name. A
// number that no block gets must be given to settle.
func (t *names) number(n name) (uint32, bool) {
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
	i := uint32(len(t.list))
	if free := len(t.free); free > 0 {
		i, t.free = t.free[free-1], t.free[:free-1]
		t.list[i] = named
	} else {
		t.list = append(t.list, named)
	}
	t.numbers[n] = i
	return i, true
}

func (t *names) hold(i uint32) { t.list[i].blocks++ }

// leave says that a block with name i is gone.
func (t *names) leave(i uint32) {
	t.list[i].blocks--
	t.settle(i)
}

// settle forgets name i if no block has it.
func (t *names) settle(i uint32) {
	named := &t.list[i]
	if i == 0 || named.blocks > 0 {
		return
	}
	t.bytes -= named.bytes()
	delete(t.numbers, named.name)
	*named = namedBlocks{}
	t.free = append(t.free, i)
}
