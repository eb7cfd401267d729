package consolidator

import (
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// engineBlock is what a rank knows about a block that its engine announced; its
// key is the engine's hash. What the block is, stands in the stream's table, which
// holds every block that a rank knows. In a block that is known refs is never 0.
type engineBlock struct {
	slot     uint32 // in the stream's table
	identity uint32
	refs     residency.Refs
}

// identity is the LoRA adapter and the salt of some blocks.
type identity struct {
	lora, salt string
	seed       uint64
	blocks     uint32 // how many blocks have it
}

type identityName struct{ lora, salt string }

const (
	// maxIdentityBytes bounds the identities of a rank. Clients choose the salts.
	maxIdentityBytes = 64 << 20
	// identityBytes is what an identity costs besides its texts.
	identityBytes = 192
)

func (n identityName) bytes() int { return identityBytes + len(n.lora) + len(n.salt) }

// identities numbers the identities of a rank's blocks. Number 0 is neither
// adapter nor salt. There are at most as many as there are blocks.
type identities struct {
	numbers map[identityName]uint32
	list    []identity
	free    []uint32
	bytes   int // at most maxIdentityBytes
}

func newIdentities() identities {
	return identities{
		numbers: make(map[identityName]uint32),
		list:    []identity{{seed: kv.LocalSeed("", "")}},
	}
}

// number returns the identity's number; false when there is no room for one more.
// A number that no block gets must be given to settle.
func (t *identities) number(name identityName) (uint32, bool) {
	lora, salt := name.lora, name.salt
	if lora == "" && salt == "" {
		return 0, true
	}
	if i, ok := t.numbers[name]; ok {
		return i, true
	}
	if t.bytes+name.bytes() > maxIdentityBytes {
		return 0, false
	}
	t.bytes += name.bytes()
	id := identity{lora: lora, salt: salt, seed: kv.LocalSeed(lora, salt)}
	i := uint32(len(t.list))
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
		t.list[i] = id
	} else {
		t.list = append(t.list, id)
	}
	t.numbers[name] = i
	return i, true
}

func (t *identities) hold(i uint32) { t.list[i].blocks++ }

// leave says that a block of identity i is gone.
func (t *identities) leave(i uint32) {
	t.list[i].blocks--
	t.settle(i)
}

// settle forgets identity i if no block has it.
func (t *identities) settle(i uint32) {
	id := &t.list[i]
	if i == 0 || id.blocks > 0 {
		return
	}
	name := identityName{id.lora, id.salt}
	t.bytes -= name.bytes()
	delete(t.numbers, name)
	*id = identity{}
	t.free = append(t.free, i)
}

// learn makes h known as b, in which refs must not be 0, and returns its slot.
// False means that the table is full.
func (c *converter) learn(h kv.EngineHash, b engineBlock) bool {
	slot, ok := c.known.Insert(uint64(h))
	if !ok {
		return false
	}
	*c.known.At(slot) = b
	c.identities.hold(b.identity)
	return true
}

// release takes back n of the references in tier t of the known block in a slot:
// all of them when it has no more. The block is forgotten with the last of any
// tier.
func (c *converter) release(tx *residency.Tx, slot uint32, t kv.Tier, n uint32) {
	b := c.known.At(slot)
	left := b.refs.Of(t) - min(n, b.refs.Of(t))
	if left == b.refs.Of(t) {
		return
	}
	b.refs.Set(t, left)
	if left > 0 {
		return
	}
	tx.DropRef(t, b.slot)
	if b.refs == 0 {
		c.identities.leave(b.identity)
		c.known.Remove(slot)
	}
}

// forgetBlocks forgets every block without a word to the stream.
func (c *converter) forgetBlocks() {
	c.known.Clear()
	c.identities = newIdentities()
	c.park.reset()
	c.unlisted = nil
}
