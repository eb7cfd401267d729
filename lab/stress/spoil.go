package stress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// One in spoilChance deaths of an agent flips bits in the blocks of a tier, or in its
// records.
const spoilChance = 2

// target is a block for a bit flip.
type target struct {
	tier   kv.Tier
	path   string
	offset int64
	length uint64
	slot   blockmgr.Slot
}

// targets returns where the blocks of all open pools lie, in host memory and on disk, for spoil
// to flip bits there. It returns nothing under a configuration without flips.
func (w *world) targets() []target {
	if !w.variant.spoil {
		return nil
	}
	var all []target
	for _, p := range w.opened() {
		for _, info := range p.Dump() {
			if info.Tiers.Has(kv.TierHost) {
				all = append(all, target{kv.TierHost, info.Host.Path, info.Host.Offset, p.BlockBytes(), info.Host.Slot})
			}
			if info.Tiers.Has(kv.TierDisk) {
				all = append(all, target{kv.TierDisk, info.Disk.Path, info.Disk.Offset, p.BlockBytes(), info.Disk.Slot})
			}
		}
	}
	return all
}

// spoil flips bits in some of the targets (places of blocks) and in some records of the slot tables
// while no agent runs. how is the way in which the last agent ended. Nothing that was flipped may
// be served later.
func (w *world) spoil(targets []target, how death, rng *rand.Rand) error {
	for _, t := range targets {
		// A loss of power leaves nothing in host memory to flip.
		if rng.IntN(4*spoilChance) != 0 || how == deathPower && t.tier == kv.TierHost {
			continue
		}
		flipped, err := flip(t.path, t.offset+rng.Int64N(int64(t.length)), rng)
		if err != nil {
			return err
		}
		w.countFlip(flipped)
		if flipped && t.tier == kv.TierHost {
			w.forgetBytes(t.slot)
		}
	}
	for _, dir := range []string{w.cfg.HostDir, w.cfg.DiskDir} {
		if rng.IntN(spoilChance) != 0 {
			continue
		}
		path := filepath.Join(dir, "slots.table")
		records, err := usedRecords(path)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			continue
		}
		flipped, err := flip(path, records[rng.IntN(len(records))]+rng.Int64N(storage.RecordSize), rng)
		if err != nil {
			return err
		}
		w.countFlip(flipped)
	}
	return nil
}

func (w *world) countFlip(flipped bool) {
	if flipped {
		w.total.fault("spoiled", 1)
	}
}

// forgetBytes sets the nonce of every grant and pin of a slot to 0: a bit was flipped there, so
// the bytes are not those of a commit any more.
func (w *world) forgetBytes(slot blockmgr.Slot) {
	w.holders(func(_ blockmgr.SessionID, grants []grant, pins []pin) {
		for i := range grants {
			if s := grants[i].slot; s.Extent == slot.Extent && s.Index == slot.Index {
				grants[i].nonce = 0
			}
		}
		for i := range pins {
			if s := pins[i].slot; s.Extent == slot.Extent && s.Index == slot.Index {
				pins[i].nonce = 0
			}
		}
	})
}

// flip inverts a random bit of the byte at the offset off of a file. It returns false without an
// error when the file no longer has that byte.
func flip(path string, off int64, rng *rand.Rand) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = flipBit(f, off, rng.IntN(8))
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil, err
}

// flipBit inverts bit number bit, 0 to 7, of the byte at the offset off of a file.
func flipBit(f *os.File, off int64, bit int) error {
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		return err
	}
	b[0] ^= 1 << bit
	_, err := f.WriteAt(b[:], off)
	return err
}

// sectionMagic begins a section of a slot table. The records follow on the next page;
// their number is 16 bytes after the magic.
const sectionMagic = "BYARDSC1"

// usedRecords returns the offsets in a slot table's file of the records that are not zero. A
// missing file has none.
func usedRecords(path string) ([]int64, error) {
	table, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []int64
	// Each extent has a section: a page with a header (number of slots at byte 16), and its records.
	for page := 0; page+storage.PageSize <= len(table); page += storage.PageSize {
		if !bytes.HasPrefix(table[page:], []byte(sectionMagic)) {
			continue
		}
		slots := int(binary.LittleEndian.Uint32(table[page+16:]))
		for i := range slots {
			off := page + storage.PageSize + i*storage.RecordSize
			if off+storage.RecordSize > len(table) {
				break
			}
			if r := table[off : off+storage.RecordSize]; !bytes.Equal(r, make([]byte, storage.RecordSize)) {
				found = append(found, int64(off))
			}
		}
	}
	return found, nil
}
