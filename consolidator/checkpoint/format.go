package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"slices"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A checkpoint is a file about one rank: little-endian numbers, and a CRC-32C of
// all the rest at the end.
//
//	magic, version u32, worker id u64, rank u32, block size u32, engine identity u64
//	sequence: next u64, last live u64, flags u8, batches (sequence number + 1 u64, checksum u64)
//	rank: flags u8, groups (i32, main u8), names (LoRA name, salt)
//	blocks: slot u32, hash u64, parent u64, local u64, position * 2 + has parent u32; slots ascend
//	engine blocks: engine hash u64, slot u32, name u32, references u32
//	unlisted engine hashes u64; parked events as an engine batch
//	blocks of other KV groups than the primary one, since version 3: key u64, hash u64, group u32,
//	references u32
//
// A rank without such blocks writes version 2, which an earlier agent reads.
//
// Lists and strings begin with their length, u32.
const (
	magic   = "BYRANK\r\n"
	version = 3
	// versionWithoutGroups ends before the blocks of other groups.
	versionWithoutGroups = 2

	flagHasLive                  = 1
	flagDegraded, flagLowerTiers = 1, 2
	// BlockBytes and EngineBlockBytes are the sizes of a row of the two tables.
	BlockBytes, EngineBlockBytes = 32, 20
	sparseBlockBytes             = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrForeign means that a file is whole and about another engine, rank, block size or version.
var ErrForeign = errors.New("about another engine, rank or block size, or of another version")

// ID names the engine, the rank and the block size of a checkpoint.
type ID struct {
	Worker    kv.Worker
	BlockSize int
	// Engine identifies the incarnation of the engine; 0: unknown.
	Engine uint64
}

const idBytes = 8 + 4 + 4 + 8

func (id ID) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(id.Worker.ID))
	dst = le.AppendUint32(dst, uint32(id.Worker.Rank))
	dst = le.AppendUint32(dst, uint32(id.BlockSize))
	return le.AppendUint64(dst, id.Engine)
}

// State is a rank's state without the two tables.
type State struct {
	Sequence sequence.State
	// Degraded: blocks were lost. LowerTiers: the engine has announced blocks outside
	// its device.
	Degraded, LowerTiers bool
	// Groups says which KV cache groups are the main attention's.
	Groups map[int32]bool
	Names  []Name
	// Unlisted are the blocks on the engine's list that no event has announced. Parked is an
	// encoded batch of the events that wait for their parents.
	Unlisted []kv.EngineHash
	Parked   []byte
	// Sparse are the engine's blocks of other KV groups than the primary one.
	Sparse []SparseBlock
}

// SparseBlock is a block of a KV group other than the primary one.
type SparseBlock struct {
	// Key is the engine's name of the block and its group: kv.InGroup of the engine's hash.
	Key uint64
	// Hash is the block of the primary group at which it ends.
	Hash  kv.SequenceHash
	Group uint32
	Refs  residency.Refs
}

// Name is an adapter and a salt.
type Name struct{ LoRA, Salt string }

// Block is a row of the stream's table; its references are not saved.
type Block struct {
	Slot uint32
	Hash kv.SequenceHash
	residency.Block
}

// EngineBlock is a row of the table of engine blocks. Slot is the slot of its Block, Name an
// index of State.Names.
type EngineBlock struct {
	Hash       kv.EngineHash
	Slot, Name uint32
	Refs       residency.Refs
}

// Tables are the rows to save. Blocks come in ascending order of their slots.
type Tables struct {
	Blocks          iter.Seq[Block]
	NumBlocks       int
	EngineBlocks    iter.Seq[EngineBlock]
	NumEngineBlocks int
}

// Append appends the checkpoint of the rank that about names, in the file's format but without
// the checksum at its end. AppendChecksum adds that.
func Append(dst []byte, about ID, s *State, t *Tables) []byte {
	le := binary.LittleEndian
	dst = append(dst, magic...)
	if len(s.Sparse) > 0 {
		dst = le.AppendUint32(dst, version)
	} else {
		dst = le.AppendUint32(dst, versionWithoutGroups)
	}
	dst = about.append(dst)

	seq := &s.Sequence
	dst = le.AppendUint64(dst, seq.Next)
	dst = le.AppendUint64(dst, seq.LastLive)
	dst = append(dst, flags(seq.HasLive, false))
	dst = le.AppendUint32(dst, uint32(len(seq.Remembered)))
	for _, e := range seq.Remembered {
		dst = le.AppendUint64(le.AppendUint64(dst, e.After), e.Sum)
	}

	dst = append(dst, flags(s.Degraded, s.LowerTiers))
	dst = le.AppendUint32(dst, uint32(len(s.Groups)))
	for group, main := range s.Groups {
		dst = append(le.AppendUint32(dst, uint32(group)), flags(main, false))
	}
	dst = le.AppendUint32(dst, uint32(len(s.Names)))
	for _, n := range s.Names {
		dst = append(le.AppendUint32(dst, uint32(len(n.LoRA))), n.LoRA...)
		dst = append(le.AppendUint32(dst, uint32(len(n.Salt))), n.Salt...)
	}
	dst = t.append(dst)

	dst = le.AppendUint32(dst, uint32(len(s.Unlisted)))
	for _, h := range s.Unlisted {
		dst = le.AppendUint64(dst, uint64(h))
	}
	dst = append(le.AppendUint32(dst, uint32(len(s.Parked))), s.Parked...)
	return appendSparse(dst, s.Sparse)
}

// appendSparse appends the table of other groups, nothing without blocks.
func appendSparse(dst []byte, blocks []SparseBlock) []byte {
	if len(blocks) == 0 {
		return dst
	}
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(len(blocks)))
	for _, b := range blocks {
		dst = le.AppendUint64(le.AppendUint64(dst, b.Key), uint64(b.Hash))
		dst = le.AppendUint32(le.AppendUint32(dst, b.Group), uint32(b.Refs))
	}
	return dst
}

// append appends both tables, each with the number of its rows in front.
func (t *Tables) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = slices.Grow(dst, 8+BlockBytes*t.NumBlocks+EngineBlockBytes*t.NumEngineBlocks)
	dst = le.AppendUint32(dst, uint32(t.NumBlocks))
	for b := range t.Blocks {
		dst = le.AppendUint32(dst, b.Slot)
		dst = le.AppendUint64(dst, uint64(b.Hash))
		dst = le.AppendUint64(dst, uint64(b.Parent))
		dst = le.AppendUint64(dst, uint64(b.Local))
		dst = le.AppendUint32(dst, b.Packed)
	}
	dst = le.AppendUint32(dst, uint32(t.NumEngineBlocks))
	for b := range t.EngineBlocks {
		dst = le.AppendUint64(dst, uint64(b.Hash))
		dst = le.AppendUint32(dst, b.Slot)
		dst = le.AppendUint32(dst, b.Name)
		dst = le.AppendUint32(dst, uint32(b.Refs))
	}
	return dst
}

// flags returns a byte with first in bit 0 and second in bit 1.
func flags(first, second bool) (f byte) {
	if first {
		f |= 1
	}
	if second {
		f |= 2
	}
	return f
}

// AppendChecksum completes a file.
func AppendChecksum(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst, castagnoli))
}

// Saved is what Parse reads from a file.
type Saved struct {
	State
	Blocks       []Block
	EngineBlocks []EngineBlock
}

// Parse reads the content b of a checkpoint of the rank that about names. The result borrows
// from b. The error is ErrForeign for a whole file about something else; any other error means
// that the file is damaged.
func Parse(b []byte, about ID) (*Saved, error) {
	if len(b) < 4 || len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return nil, errors.New("no checkpoint")
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, errors.New("damaged: wrong checksum")
	}
	r := &reader{buf: body[len(magic):]}
	v := r.uint32()
	if v != version && v != versionWithoutGroups || !bytes.Equal(r.take(idBytes), about.append(nil)) {
		return nil, ErrForeign
	}
	s := &Saved{}
	r.sequence(&s.Sequence)
	r.rank(&s.State)
	r.tables(s)
	if v == version {
		r.sparse(s)
	}
	if r.bad || len(r.buf) > 0 {
		return nil, errors.New("damaged: its lists do not add up")
	}
	return s, s.validate()
}

// validate checks that the tables of a checkpoint fit together: slots ascend, each hash is that of
// its block's content, and references between tables have a target. find searches the blocks by
// slot, and relies on the order.
func (s *Saved) validate() error {
	for i, b := range s.Blocks {
		if i > 0 && s.Blocks[i-1].Slot >= b.Slot {
			return fmt.Errorf("block %d: slot %d is out of order", i, b.Slot)
		}
		hash := kv.SequenceHash(b.Local)
		if b.HasParent() {
			hash = kv.Chain(b.Parent, b.Local)
		}
		isFirst := b.Position() == 0
		if hash != b.Hash || b.HasParent() == isFirst {
			return fmt.Errorf("block %d: hash %x is not that of its content at position %d", i, uint64(b.Hash), b.Position())
		}
	}
	for i, b := range s.EngineBlocks {
		if _, ok := s.find(b.Slot); !ok || int(b.Name) >= len(s.Names) || b.Refs == 0 {
			return fmt.Errorf("engine block %d: slot %d, name %d or its references cannot be", i, b.Slot, b.Name)
		}
	}
	for i, b := range s.Sparse {
		if b.Group == 0 || b.Refs == 0 {
			return fmt.Errorf("block %d of another group: group %d, references %d", i, b.Group, b.Refs)
		}
	}
	for i, e := range s.Sequence.Remembered {
		if e.After == 0 { // the batch's number plus one
			return fmt.Errorf("batch %d: no sequence number", i)
		}
	}
	return nil
}

// Block returns the block of an engine block.
func (s *Saved) Block(b EngineBlock) *Block {
	i, _ := s.find(b.Slot)
	return &s.Blocks[i]
}

func (s *Saved) find(slot uint32) (int, bool) {
	return slices.BinarySearchFunc(s.Blocks, slot, func(b Block, slot uint32) int {
		return int(int64(b.Slot) - int64(slot))
	})
}
