package stress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// memory is the host extents as the engines map them, through files that outlive the
// agent.
type memory struct {
	extents map[uint32]mapped
}

// mapped is one host extent.
type mapped struct {
	info blockmgr.ExtentInfo
	file *os.File
}

// maxMapped bounds the open files. Others are closed and opened again.
const maxMapped = 256

// errUnmapped says that the extent of a slot is gone.
var errUnmapped = errors.New("extent is not mapped")

// find returns the file and the offset at which a slot's data begin. The error wraps errUnmapped
// for a slot in no extent of the pool. Without a pool, find knows only extents that are open
// already.
func (m *memory) find(pool *blockmgr.Pool, slot blockmgr.Slot) (file *os.File, offset int64, err error) {
	e, ok := m.extents[slot.Extent]
	if !ok && pool != nil {
		if err := m.mapAll(pool); err != nil {
			return nil, 0, err
		}
		e, ok = m.extents[slot.Extent]
	}
	if !ok || slot.Index >= e.info.Slots {
		return nil, 0, fmt.Errorf("slot %d/%d: %w", slot.Extent, slot.Index, errUnmapped)
	}
	return e.file, int64(e.info.DataOffset + uint64(slot.Index)*e.info.SlotBytes), nil
}

// mapAll opens the files of all extents (files of slots) of the pool that are not open, so that the
// harness can read slots as an engine does. When very many are open it first closes all.
func (m *memory) mapAll(pool *blockmgr.Pool) error {
	if len(m.extents) > maxMapped {
		if err := m.forget(); err != nil {
			return err
		}
	}
	for _, info := range pool.Extents() {
		if _, ok := m.extents[info.ID]; ok {
			continue
		}
		f, err := os.OpenFile(info.Path, os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // the extent has just gone to another namespace
		}
		if err != nil {
			return err
		}
		m.extents[info.ID] = mapped{info, f}
	}
	return nil
}

// forget closes the files of all extents. Later calls open them again.
func (m *memory) forget() error {
	var errs []error
	for _, e := range m.extents {
		errs = append(errs, e.file.Close())
	}
	clear(m.extents)
	return errors.Join(errs...)
}

// write copies data into a slot, as an engine's process does through its own mapping.
func (m *memory) write(pool *blockmgr.Pool, slot blockmgr.Slot, data []byte) error {
	f, off, err := m.find(pool, slot)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, off)
	return err
}

// flip inverts one bit of a slot.
func (m *memory) flip(pool *blockmgr.Pool, slot blockmgr.Slot, bit int) error {
	f, off, err := m.find(pool, slot)
	if err != nil {
		return err
	}
	return flipBit(f, off+int64(bit/8), bit%8)
}

// errChanged says that the generation word of a held slot has changed.
var errChanged = errors.New("a slot that is held has changed its generation")

// read fills data from a slot. It compares the generation word before and after; the error is
// errChanged when the slot was granted again.
func (m *memory) read(pool *blockmgr.Pool, slot blockmgr.Slot, data []byte) error {
	f, off, err := m.find(pool, slot)
	if err != nil {
		return err
	}
	if err := sameGeneration(f, slot); err != nil {
		return err
	}
	if _, err := f.ReadAt(data, off); err != nil {
		return err
	}
	return sameGeneration(f, slot)
}

// sameGeneration returns an error that wraps errChanged when the slot's generation word in the
// extent's file is not that of slot.
func sameGeneration(f *os.File, slot blockmgr.Slot) error {
	var word [8]byte
	if _, err := f.ReadAt(word[:], 8*int64(slot.Index)); err != nil {
		return err
	}
	if g := binary.LittleEndian.Uint64(word[:]); g != slot.Generation {
		return fmt.Errorf("slot %d/%d: generation word %d, want %d: %w", slot.Extent, slot.Index, g, slot.Generation, errChanged)
	}
	return nil
}
