package consolidator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// A checkpoint is a file about one rank: little-endian numbers, and a CRC-32C of
// all the rest at the end.
//
//	magic, version u32, worker id u64, rank u32, block size u32, engine identity u64
//	sequence: next u64, last live u64, flags u8, batches (sequence number + 1 u64, checksum u64)
//	rank: flags u8, groups (i32, main u8), identities (LoRA name, salt)
//	blocks: slot u32, hash u64, parent u64, local u64, place u32; slots ascend
//	engine blocks: engine hash u64, slot u32, identity u32, references u32
//	unlisted engine hashes u64; parked events as an engine batch
//
// Lists and strings begin with their length, u32.
const (
	checkpointMagic   = "BYRANK\r\n"
	checkpointVersion = 2

	flagHasLive                   = 1
	flagDegraded, flagLowerTiers  = 1, 2
	residentBytes, engineRowBytes = 32, 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errForeignCheckpoint: the file is whole, but about something else.
var errForeignCheckpoint = errors.New("about another engine, rank or block size, or of another version")

// checkpointID is what a checkpoint is about.
type checkpointID struct {
	worker    kv.Worker
	blockSize int
	engine    uint64 // RankConfig.Identity
}

const checkpointIDBytes = 8 + 4 + 4 + 8

func (id checkpointID) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(id.worker.ID))
	dst = le.AppendUint32(dst, uint32(id.worker.Rank))
	dst = le.AppendUint32(dst, uint32(id.blockSize))
	return le.AppendUint64(dst, id.engine)
}

// checkpoint is a rank's state in a file.
type checkpoint struct {
	sequence             sequence.State
	degraded, lowerTiers bool
	groups               map[int32]bool
	identities           []identityName
	residents            []savedResident
	blocks               []savedBlock
	unlisted             []kv.EngineHash
	parked               []byte
}

type savedResident struct {
	slot, place  uint32
	hash, parent kv.SequenceHash
	local        kv.LocalHash
}

type savedBlock struct {
	hash kv.EngineHash
	engineBlock
}

// appendCheckpoint appends the file for the state of c and st, but for its
// checksum.
func (c *converter) appendCheckpoint(dst []byte, about checkpointID, st *sequence.State) []byte {
	le := binary.LittleEndian
	dst = append(dst, checkpointMagic...)
	dst = le.AppendUint32(dst, checkpointVersion)
	dst = about.append(dst)

	dst = le.AppendUint64(dst, st.Next)
	dst = le.AppendUint64(dst, st.LastLive)
	dst = append(dst, flags(st.HasLive, false))
	dst = le.AppendUint32(dst, uint32(len(st.Remembered)))
	for _, e := range st.Remembered {
		dst = le.AppendUint64(le.AppendUint64(dst, e.After), e.Sum)
	}

	dst = append(dst, flags(c.degraded, c.lowerTiers))
	dst = le.AppendUint32(dst, uint32(len(c.groups.main)))
	for group, main := range c.groups.main {
		dst = append(le.AppendUint32(dst, uint32(group)), flags(main, false))
	}
	dst = le.AppendUint32(dst, uint32(len(c.identities.list)))
	for _, id := range c.identities.list {
		dst = append(le.AppendUint32(dst, uint32(len(id.lora))), id.lora...)
		dst = append(le.AppendUint32(dst, uint32(len(id.salt))), id.salt...)
	}
	dst = c.appendBlocks(dst)

	dst = le.AppendUint32(dst, uint32(len(c.unlisted)))
	for h := range c.unlisted {
		dst = le.AppendUint64(dst, uint64(h))
	}
	parked := c.park.appendBatch(nil)
	return append(le.AppendUint32(dst, uint32(len(parked))), parked...)
}

// appendBlocks appends both tables, in the order in which they lie in memory.
func (c *converter) appendBlocks(dst []byte) []byte {
	le := binary.LittleEndian
	table := c.stream.View()
	defer table.Close()
	dst = slices.Grow(dst, 8+residentBytes*table.Len()+engineRowBytes*c.known.Len())
	dst = le.AppendUint32(dst, uint32(table.Len()))
	for slot := range table.Slots() {
		r := table.At(slot)
		if r.Refs == 0 {
			continue // a free slot
		}
		dst = le.AppendUint32(dst, slot)
		dst = le.AppendUint64(dst, table.Key(slot))
		dst = le.AppendUint64(dst, uint64(r.Parent))
		dst = le.AppendUint64(dst, uint64(r.Local))
		dst = le.AppendUint32(dst, r.Packed)
	}
	dst = le.AppendUint32(dst, uint32(c.known.Len()))
	for slot := range c.known.Slots() {
		b := c.known.At(slot)
		if b.refs == 0 {
			continue // a free slot
		}
		dst = le.AppendUint64(dst, c.known.Key(slot))
		dst = le.AppendUint32(dst, b.slot)
		dst = le.AppendUint32(dst, b.identity)
		dst = le.AppendUint32(dst, uint32(b.refs))
	}
	return dst
}

func flags(first, second bool) (f byte) {
	if first {
		f |= 1
	}
	if second {
		f |= 2
	}
	return f
}

// appendChecksum completes a file.
func appendChecksum(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst, castagnoli))
}

// parseCheckpoint reads the file of a rank. What it returns borrows from b.
func parseCheckpoint(b []byte, about checkpointID) (*checkpoint, error) {
	if len(b) < 4 || len(b) < len(checkpointMagic) || string(b[:len(checkpointMagic)]) != checkpointMagic {
		return nil, errors.New("no checkpoint")
	}
	body := b[:len(b)-4]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, errors.New("damaged: wrong checksum")
	}
	r := &savedReader{buf: body[len(checkpointMagic):]}
	if r.uint32() != checkpointVersion || !bytes.Equal(r.take(checkpointIDBytes), about.append(nil)) {
		return nil, errForeignCheckpoint
	}
	ck := &checkpoint{}
	r.sequence(&ck.sequence)
	r.rank(ck)
	r.tables(ck)
	if r.bad || len(r.buf) > 0 {
		return nil, errors.New("damaged: its lists do not add up")
	}
	return ck, ck.validate()
}

// validate checks what the tables say of one another.
func (ck *checkpoint) validate() error {
	for i, r := range ck.residents {
		if i > 0 && ck.residents[i-1].slot >= r.slot {
			return fmt.Errorf("block %d: slot %d is out of order", i, r.slot)
		}
		at, hash := residency.Block{Packed: r.place}, kv.SequenceHash(r.local)
		if at.HasParent() {
			hash = kv.Chain(r.parent, r.local)
		}
		if hash != r.hash || at.HasParent() != (at.Position() > 0) {
			return fmt.Errorf("block %d: hash %x is not that of its content at position %d", i, uint64(r.hash), at.Position())
		}
	}
	for i, b := range ck.blocks {
		if _, ok := ck.Block(b.slot); !ok || int(b.identity) >= len(ck.identities) || b.refs == 0 {
			return fmt.Errorf("engine block %d: slot %d, identity %d or its references cannot be", i, b.slot, b.identity)
		}
	}
	for i, e := range ck.sequence.Remembered {
		if e.After == 0 {
			return fmt.Errorf("batch %d: no sequence number", i)
		}
	}
	return nil
}

// Block is the index of the block in a slot.
func (ck *checkpoint) Block(slot uint32) (int, bool) {
	return slices.BinarySearchFunc(ck.residents, slot, func(r savedResident, slot uint32) int {
		return int(int64(r.slot) - int64(slot))
	})
}

// appendBatch appends what is parked as the engine batch that would park it.
func (p *park) appendBatch(dst []byte) []byte {
	if p.empty() {
		return dst
	}
	var b engineevent.Batch
	for _, r := range p.order {
		if r.out {
			continue
		}
		b.Events = append(b.Events, r.event)
		var gone []kv.EngineHash
		for i, h := range r.event.BlockHashes {
			if r.isGone(i) {
				gone = append(gone, h)
			}
		}
		if len(gone) > 0 {
			b.Events = append(b.Events, engineevent.Event{
				Kind: kvevent.Removed, BlockHashes: gone, Medium: r.event.Medium,
				Group: r.event.Group, SpecKind: r.event.SpecKind,
			})
		}
	}
	return engineevent.AppendBatch(dst, &b)
}
