package storagetest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// SectorSize is what a disk writes whole or not at all.
const SectorSize = 512

// DefaultPowerLossBytes is the default of PowerLoss.MaxBytes.
const DefaultPowerLossBytes = 256 << 20

// ErrPowerLost is the error of every operation on a file after the power was lost.
var ErrPowerLost = errors.New("power was lost")

// PowerLoss is a machine that forgets unsynced writes when its power fails. It wraps
// the files of one or several arenas (extent.DiskOptions.Wrap). For each sector it
// remembers the content at the last sync of its file and everything written since. Lose
// puts any of these back, sector by sector.
//
// Allocate counts as a sync. A file that is removed, or emptied and allocated anew, has
// no past. Files are told apart by inode and may be renamed.
//
// All methods are safe for concurrent use. Writes to a file run concurrently; a Sync
// waits for the writes under way and holds back new ones.
type PowerLoss struct {
	// MaxBytes is about how many bytes of sector contents are remembered; 0 means
	// DefaultPowerLossBytes. Beyond it the oldest write counts as synced; see
	// LossReport.Settled. Set MaxBytes before the first Wrap.
	MaxBytes int64

	mu sync.Mutex
	// files are the files wrapped since the last loss. mu guards their records too.
	files map[fileID]*lossFile
	// order has the files in the order of their first Wrap: a seed gives the same loss
	// again.
	order   []*lossFile
	held    int64
	serial  uint64
	settled int
}

type fileID struct{ dev, ino uint64 }

// lossFile is the record of one file.
type lossFile struct {
	id   fileID
	path string
	// own outlives the agent's descriptor. While it is open, no other file gets the
	// inode number.
	own *os.File

	// busy is held for reading by each write until its end, and for writing by what must
	// wait for all writes.
	busy sync.RWMutex
	// lost ends all use of the file; it is set with busy held.
	lost atomic.Bool

	// sectors are those with unsynced writes, by number. Each has its content at the last
	// sync and then what was written since, oldest first.
	sectors map[int64][]sectorVersion
	// writes are those that some sector remembers, oldest first.
	writes []*unsyncedWrite
	// synced is the length of the file at the last sync.
	synced int64
}

// sectorVersion is one content of one sector; by is nil for what is synced.
type sectorVersion struct {
	by   *unsyncedWrite
	data [SectorSize]byte
}

// unsyncedWrite is one WriteAt: the sectors from first up to end.
type unsyncedWrite struct {
	serial     uint64
	first, end int64
}

// NewPowerLoss returns a machine with power. Lose or Close closes its descriptors.
func NewPowerLoss() *PowerLoss { return &PowerLoss{files: map[fileID]*lossFile{}} }

// Wrap returns an extent.DiskOptions.Wrap. When path cannot be opened, every operation of the
// file fails: a loss that loses nothing would be a blind test.
func (p *PowerLoss) Wrap(path string, f extent.File) extent.File {
	l, err := p.file(path)
	return &lossyFile{power: p, file: f, loss: l, err: err}
}

// file returns the record of the file at path, a new one for a new file.
func (p *PowerLoss) file(path string) (*lossFile, error) {
	own, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("power loss: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(own.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("power loss: %s: %w", path, err), own.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropRemovedLocked()
	id := fileID{uint64(st.Dev), st.Ino}
	if l := p.files[id]; l != nil {
		l.path = path
		return l, own.Close()
	}
	l := &lossFile{id: id, path: path, own: own, sectors: map[int64][]sectorVersion{}, synced: st.Size}
	p.files[id] = l
	p.order = append(p.order, l)
	return l, nil
}

// dropRemovedLocked forgets the files that have no name any more.
func (p *PowerLoss) dropRemovedLocked() {
	kept := p.order[:0]
	for _, l := range p.order {
		var st unix.Stat_t
		if err := unix.Fstat(int(l.own.Fd()), &st); err == nil && st.Nlink == 0 {
			// Nothing was written through the descriptor.
			_ = p.releaseLocked(l)
			continue
		}
		kept = append(kept, l)
	}
	clear(p.order[len(kept):])
	p.order = kept
}

// forgetLocked counts everything written to l as synced: a loss no longer takes it back.
func (p *PowerLoss) forgetLocked(l *lossFile) {
	for _, versions := range l.sectors {
		p.held -= int64(len(versions)) * SectorSize
	}
	clear(l.sectors)
	l.writes = nil
}

// recordLocked enters a write of data at off. old is the content before the write, from
// sector first on.
func (p *PowerLoss) recordLocked(l *lossFile, data []byte, off int64, old []byte, first int64) {
	w := &unsyncedWrite{serial: p.serial, first: off / SectorSize, end: sectorEnd(off + int64(len(data)))}
	p.serial++
	for s := w.first; s < w.end; s++ {
		versions := l.sectors[s]
		if versions == nil {
			versions = make([]sectorVersion, 1, 2)
			copy(versions[0].data[:], old[(s-first)*SectorSize:])
			p.held += SectorSize
		}
		// A write that begins or ends within a sector leaves the rest as it was.
		next := sectorVersion{by: w, data: versions[len(versions)-1].data}
		copy(next.data[max(off-s*SectorSize, 0):], data[max(s*SectorSize-off, 0):])
		l.sectors[s] = append(versions, next)
		p.held += SectorSize
	}
	l.writes = append(l.writes, w)
	limit := cmp.Or(p.MaxBytes, DefaultPowerLossBytes)
	for p.held > limit {
		p.settleOldestLocked()
	}
}

// settleOldestLocked counts the oldest write of all files as synced, to bound the memory; see
// MaxBytes.
func (p *PowerLoss) settleOldestLocked() {
	var oldest *lossFile
	for _, l := range p.order {
		if len(l.writes) > 0 && (oldest == nil || l.writes[0].serial < oldest.writes[0].serial) {
			oldest = l
		}
	}
	if oldest == nil {
		panic(fmt.Sprintf("BUG: %d bytes are held by no write", p.held))
	}
	w := oldest.writes[0]
	oldest.writes = oldest.writes[1:]
	for s := w.first; s < w.end; s++ {
		// Being the oldest, it comes right after what is synced.
		versions := oldest.sectors[s][1:]
		versions[0].by = nil
		p.held -= SectorSize
		oldest.sectors[s] = versions
		if len(versions) == 1 {
			delete(oldest.sectors, s)
			p.held -= SectorSize
		}
	}
	p.settled++
}

// Close closes the descriptors of all files, which keep what they have. It comes after
// the last use of the files.
func (p *PowerLoss) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, l := range p.order {
		errs = append(errs, p.releaseLocked(l))
	}
	p.order = nil
	return errors.Join(errs...)
}

// releaseLocked ends the record of l, but for its entry in p.order.
func (p *PowerLoss) releaseLocked(l *lossFile) error {
	p.forgetLocked(l)
	delete(p.files, l.id)
	return l.own.Close()
}

func sectorEnd(off int64) int64 { return (off + SectorSize - 1) / SectorSize }

// lossyFile is a File whose writes a PowerLoss remembers. err fails every operation.
type lossyFile struct {
	power *PowerLoss
	file  extent.File
	loss  *lossFile
	err   error
}

var _ extent.File = (*lossyFile)(nil)

// ReadAt implements extent.File.
func (f *lossyFile) ReadAt(b []byte, off int64) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.loss.lost.Load() {
		return 0, ErrPowerLost
	}
	return f.file.ReadAt(b, off)
}

// WriteAt implements extent.File. It records the write and the content before it.
func (f *lossyFile) WriteAt(b []byte, off int64) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	f.loss.busy.RLock()
	defer f.loss.busy.RUnlock()
	if f.loss.lost.Load() {
		return 0, ErrPowerLost
	}
	if off < 0 { // the file returns the error
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
	// Even after an error any of the sectors may have reached the disk.
	return f.file.WriteAt(b, off)
}

// old returns the content of the sectors of n bytes at off, whole pages in page-aligned
// memory, for files with O_DIRECT. first is the number of the first sector. old is zeros
// when the past of all sectors is known already.
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

// known reports whether all sectors of n bytes at off were written since the last sync.
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

// settle calls do, an Allocate or Sync, while no write is under way. If do succeeds, all earlier
// writes count as synced.
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
