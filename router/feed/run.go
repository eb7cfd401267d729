package feed

import (
	"encoding/binary"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxRun bounds the blocks of a run in a snapshot.
const maxRun = kvevent.MaxBlocksPerMessage

// The third byte of a run: its tier, and whether it has a parent and hashes of its
// own.
const (
	runTier   = 0x0f
	runParent = 0x10
	runHashes = 0x20
)

// appendRun appends a stored event of at most maxRun blocks.
func appendRun(dst []byte, e *kvevent.RouterEvent) []byte {
	flags := byte(e.Tier)
	if e.HasParent {
		flags |= runParent
	}
	if !isChain(e) {
		flags |= runHashes
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e.Blocks)))
	dst = append(dst, flags)
	if e.HasParent {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Parent))
	}
	for _, b := range e.Blocks {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Local))
		if flags&runHashes != 0 {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Hash))
		}
	}
	return dst
}

// isChain reports whether the hashes follow from the parent and the LocalHashes,
// as they do unless a publisher names blocks otherwise.
func isChain(e *kvevent.RouterEvent) bool {
	above, inside := e.Parent, e.HasParent
	for _, b := range e.Blocks {
		if b.Hash != chain(above, inside, b.Local) {
			return false
		}
		above, inside = b.Hash, true
	}
	return true
}

// chain is the hash of a block below another one, or at the root.
func chain(above kv.SequenceHash, inside bool, local kv.LocalHash) kv.SequenceHash {
	if inside {
		return kv.Chain(above, local)
	}
	return kv.SequenceHash(local)
}

// run reads a run into f; false at the end of the feed.
func (s *snapshotReader) run(f *feedImage) (more bool, err error) {
	b, err := s.take(2)
	if err != nil {
		return false, err
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n == 0 {
		return false, nil
	}
	if b, err = s.take(1); err != nil {
		return false, err
	}
	flags := b[0]
	e := kvevent.RouterEvent{
		Owner: f.announcement.Owner, ID: uint64(len(f.events)) + 1, Kind: kvevent.Stored,
		Tier: kv.Tier(flags & runTier), HasParent: flags&runParent != 0,
	}
	if n > maxRun || e.Tier >= kv.NumTiers || flags&^(runTier|runParent|runHashes) != 0 {
		return false, fmt.Errorf("run of %d blocks with flags %#x, want at most %d in a tier below %d", n, flags, maxRun, kv.NumTiers)
	}
	if e.HasParent {
		if b, err = s.take(8); err != nil {
			return false, err
		}
		e.Parent = kv.SequenceHash(binary.LittleEndian.Uint64(b))
	}
	if err := s.blocks(&e, n, flags&runHashes != 0); err != nil {
		return false, err
	}
	f.events = append(f.events, e)
	return true, nil
}

// blocks reads the blocks of a run.
func (s *snapshotReader) blocks(e *kvevent.RouterEvent, n int, hashes bool) error {
	above, inside := e.Parent, e.HasParent
	for range n {
		b, err := s.take(8)
		if err != nil {
			return err
		}
		local := kv.LocalHash(binary.LittleEndian.Uint64(b))
		hash := chain(above, inside, local)
		if hashes {
			if b, err = s.take(8); err != nil {
				return err
			}
			hash = kv.SequenceHash(binary.LittleEndian.Uint64(b))
		}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: hash, Local: local})
		above, inside = hash, true
	}
	return nil
}
