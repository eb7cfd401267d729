package blockmgr

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// chain is n blocks of one sequence; chains of different seeds share nothing.
func chain(seed uint64, n int) []Block {
	var root kv.BlockKey
	binary.LittleEndian.PutUint64(root[:], seed)
	blocks := make([]Block, n)
	keyer := kv.NewKeyer()
	parent, seq := root, kv.SequenceHash(0)
	for i := range blocks {
		local := kv.LocalHash(seed<<32 + uint64(i) + 1)
		b := &blocks[i]
		*b = Block{
			Key: keyer.Next(parent, []uint32{uint32(i)}, nil).InGroup(0), Parent: parent,
			Local: local, Seq: kv.SequenceHash(local), Position: uint32(i), Seed: kv.HashSeed,
		}
		if i > 0 {
			b.ParentSeq, b.Seq = seq, kv.Chain(seq, local)
		}
		parent, seq = b.Key.Block(), b.Seq
	}
	return blocks
}

// content is what the version-th commit of a block fills it with.
func (p *testPool) content(b *Block, version uint64) []byte {
	data := make([]byte, p.BlockBytes())
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(b.Key[:]), version))
	for i := 0; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rng.Uint64())
	}
	return data
}

// file finds a slot's extent file and offset, as a client does.
func (p *testPool) file(s Slot) (ExtentInfo, int64) {
	p.t.Helper()
	for _, e := range p.Extents() {
		if e.ID == s.Extent && s.Index < e.Slots {
			return e, int64(e.DataOffset + uint64(s.Index)*e.SlotBytes)
		}
	}
	p.t.Fatalf("slot %+v is in no extent", s)
	return ExtentInfo{}, 0
}

func (p *testPool) write(s Slot, data []byte) {
	p.t.Helper()
	e, off := p.file(s)
	if _, err := e.File.WriteAt(data, off); err != nil {
		p.t.Fatalf("write slot: %v", err)
	}
}

// read is a slot's bytes; its generation word must be the slot's.
func (p *testPool) read(s Slot) []byte {
	p.t.Helper()
	e, off := p.file(s)
	data, word := make([]byte, p.BlockBytes()), make([]byte, 8)
	if _, err := e.File.ReadAt(data, off); err != nil {
		p.t.Fatalf("read slot: %v", err)
	}
	if _, err := e.File.ReadAt(word, 8*int64(s.Index)); err != nil {
		p.t.Fatalf("read generation: %v", err)
	}
	if g := binary.LittleEndian.Uint64(word); g != s.Generation {
		p.t.Errorf("slot %+v has generation word %d", s, g)
	}
	return data
}

func keysOf(blocks []Block) []kv.StoredKey {
	keys := make([]kv.StoredKey, len(blocks))
	for i := range blocks {
		keys[i] = blocks[i].Key
	}
	return keys
}
