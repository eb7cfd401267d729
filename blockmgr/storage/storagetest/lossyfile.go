package storagetest

import (
	"errors"
	"fmt"
	"io"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// lossyFile is a File whose writes a PowerLoss remembers.
type lossyFile struct {
	power *PowerLoss
	file  extent.File
	loss  *lossFile
	err   error
}

var _ extent.File = (*lossyFile)(nil)

func (f *lossyFile) ReadAt(b []byte, off int64) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.loss.lost.Load() {
		return 0, ErrPowerLost
	}
	return f.file.ReadAt(b, off)
}

func (f *lossyFile) WriteAt(b []byte, off int64) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	f.loss.busy.RLock()
	defer f.loss.busy.RUnlock()
	if f.loss.lost.Load() {
		return 0, ErrPowerLost
	}
	if off < 0 {
		return f.file.WriteAt(b, off)
	}
	// A copy, because mapped memory may be gone under it.
	data := make([]byte, len(b))
	if err := extent.Guard(func() { copy(data, b) }); err != nil {
		return 0, err
	}
	old, first, err := f.old(off, len(b))
	if err != nil {
		return 0, fmt.Errorf("power loss: what %s held at %d: %w", f.loss.path, off, err)
	}
	f.power.mu.Lock()
	f.power.recordLocked(f.loss, data, off, old, first)
	f.power.mu.Unlock()
	// Whatever comes of it, any of its sectors may have reached the disk.
	return f.file.WriteAt(b, off)
}

// old reads what the sectors of n bytes at off hold. It reads whole pages into
// page-aligned memory, for files with O_DIRECT; first is the number of the first
// sector read. Sectors whose past is known already are read for nothing.
func (f *lossyFile) old(off int64, n int) (old []byte, first int64, err error) {
	start := off &^ (extent.PageSize - 1)
	old = extent.AlignedBytes(int(extent.RoundUp(uint64(off)+uint64(n), extent.PageSize) - uint64(start)))
	if f.known(off, n) {
		return old, start / SectorSize, nil
	}
	if _, err := f.file.ReadAt(old, start); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	return old, start / SectorSize, nil
}

// known reports whether all sectors of n bytes at off have been written since
// the last sync.
func (f *lossyFile) known(off int64, n int) bool {
	f.power.mu.Lock()
	defer f.power.mu.Unlock()
	for s := off / SectorSize; s < sectorEnd(off+int64(n)); s++ {
		if f.loss.sectors[s] == nil {
			return false
		}
	}
	return true
}

func (f *lossyFile) Allocate(size int64) error {
	return f.settle(func() error { return f.file.Allocate(size) })
}

func (f *lossyFile) Sync() error { return f.settle(f.file.Sync) }

// settle does something after which all that was written before is on the disk,
// unless it fails.
func (f *lossyFile) settle(do func() error) error {
	if f.err != nil {
		return f.err
	}
	l := f.loss
	l.busy.Lock()
	defer l.busy.Unlock()
	if l.lost.Load() {
		return ErrPowerLost
	}
	if err := do(); err != nil {
		return err
	}
	st, err := l.own.Stat()
	if err != nil {
		return fmt.Errorf("power loss: %s: %w", l.path, err)
	}
	f.power.mu.Lock()
	defer f.power.mu.Unlock()
	f.power.forgetLocked(l)
	l.synced = st.Size()
	return nil
}

// Close closes the file; what it wrote can still be lost.
func (f *lossyFile) Close() error { return f.file.Close() }
