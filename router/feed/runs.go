package feed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxRun bounds the blocks of a run in a snapshot.
const maxRun = kvevent.MaxBlocksPerMessage

// Flags in the third byte of a run. The low bits are the tier.
const (
	runTier   = 0x0f
	runParent = 0x10
	runHashes = 0x20
	runGroup  = 0x40
)

// appendRun appends a stored event of at most maxRun blocks in the format of a snapshot. It leaves
// out hashes that follow from the parent and the LocalHashes.
func appendRun(dst []byte, e *kvevent.RouterEvent) []byte {
	flags := byte(e.Tier)
	if e.Group != 0 {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e.Blocks)))
		dst = append(dst, flags|runGroup, byte(e.Group))
		for _, b := range e.Blocks {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Hash))
		}
		return dst
	}
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

// isChain reports whether the hashes of e follow from its parent and the LocalHashes, so that a
// snapshot need not have them.
func isChain(e *kvevent.RouterEvent) bool {
	parent, hasParent := e.Parent, e.HasParent
	for _, b := range e.Blocks {
		if b.Hash != chain(parent, hasParent, b.Local) {
			return false
		}
		parent, hasParent = b.Hash, true
	}
	return true
}

// chain returns the hash of a block with a parent, or of a first block.
func chain(parent kv.SequenceHash, hasParent bool, local kv.LocalHash) kv.SequenceHash {
	if hasParent {
		return kv.Chain(parent, local)
	}
	return kv.SequenceHash(local)
}

// run reads a run, blocks of one tier each of which is the parent of the next, and adds it to f as a
// stored event. It returns false at the end of the feed.
func (s *snapshotReader) run(f *feedImage) (more bool, err error) {
	b, err := s.read(2)
	if err != nil {
		return false, err
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n == 0 {
		return false, nil
	}
	if b, err = s.read(1); err != nil {
		return false, err
	}
	flags := b[0]
	e := kvevent.RouterEvent{
		Owner: f.announcement.Owner, ID: uint64(len(f.events)) + 1, Kind: kvevent.Stored,
		Tier: kv.Tier(flags & runTier), HasParent: flags&runParent != 0,
	}
	inGroup := flags&runGroup != 0
	if n > maxRun || e.Tier >= kv.NumTiers || flags&^(runTier|runParent|runHashes|runGroup) != 0 || inGroup && flags&^runTier != runGroup {
		return false, fmt.Errorf("run of %d blocks with flags %#x, want at most %d in a tier below %d", n, flags, maxRun, kv.NumTiers)
	}
	if inGroup {
		return true, s.groupRun(f, &e, n)
	}
	if e.HasParent {
		if b, err = s.read(8); err != nil {
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

// groupRun reads the group and the n blocks of a run of another group than the primary one, and adds
// the run to f as the stored event e.
func (s *snapshotReader) groupRun(f *feedImage, e *kvevent.RouterEvent, n int) error {
	b, err := s.read(1)
	if err != nil {
		return err
	}
	if e.Group = uint32(b[0]); e.Group == 0 {
		return errors.New("run of group 0 in the form of other groups")
	}
	for range n {
		if b, err = s.read(8); err != nil {
			return err
		}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(binary.LittleEndian.Uint64(b))})
	}
	f.events = append(f.events, *e)
	return nil
}

// blocks reads the n blocks of a run into e. hasHashes says that the snapshot has their hashes;
// otherwise they follow from the parent and the LocalHashes.
func (s *snapshotReader) blocks(e *kvevent.RouterEvent, n int, hasHashes bool) error {
	parent, hasParent := e.Parent, e.HasParent
	for range n {
		b, err := s.read(8)
		if err != nil {
			return err
		}
		local := kv.LocalHash(binary.LittleEndian.Uint64(b))
		hash := chain(parent, hasParent, local)
		if hasHashes {
			if b, err = s.read(8); err != nil {
				return err
			}
			hash = kv.SequenceHash(binary.LittleEndian.Uint64(b))
		}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: hash, Local: local})
		parent, hasParent = hash, true
	}
	return nil
}
