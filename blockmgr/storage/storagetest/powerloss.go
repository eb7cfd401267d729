package storagetest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// SectorSize is what a disk writes whole or not at all.
const SectorSize = 512

// DefaultPowerLossBytes is PowerLoss.MaxBytes when that is 0.
const DefaultPowerLossBytes = 256 << 20

// ErrPowerLost is what every operation on a file gives after the power was lost.
var ErrPowerLost = errors.New("power was lost")

// PowerLoss stands for a machine that forgets what was not synced when its power
// fails. It goes around the files of one or several arenas (DiskOptions.Wrap),
// remembers what each sector held at the last sync of its file and everything
// written to it since, and Lose puts any of these back, sector by sector.
//
// Allocate counts as a sync. A file that is removed, or made empty and allocated
// anew, has no past. Files are told apart by inode, so they may be renamed.
//
// All methods are safe for concurrent use. Writes to a file run concurrently;
// a Sync waits for those under way and holds back new ones.
type PowerLoss struct {
	// MaxBytes bounds the sector contents that are remembered, about; 0 means
	// DefaultPowerLossBytes. Beyond it the oldest write is taken for synced, which
	// LossReport.Settled counts. Set it before the first Wrap.
	MaxBytes int64

	mu sync.Mutex
	// files are the files wrapped since the last loss; their records are guarded
	// by mu too.
	files map[fileID]*lossFile
	// order is the files in the order of their first Wrap, so that a seed gives
	// the same loss again.
	order   []*lossFile
	held    int64
	serial  uint64
	settled int
}

type fileID struct{ dev, ino uint64 }

// lossFile is what is known of one file.
type lossFile struct {
	id   fileID
	path string
	// own is a descriptor of our own: it outlives the agent's, and the inode
	// number cannot be given to another file while it is open.
	own *os.File

	// busy is held for reading by each write until it is through, for writing by
	// whatever needs all of them to be through.
	busy sync.RWMutex
	// lost ends all use of the file; it is set with busy held.
	lost atomic.Bool

	// sectors holds what is not synced, by sector number: first what the sector
	// held at the last sync, then what was written since, oldest first.
	sectors map[int64][]sectorVersion
	// writes are those that some sector still remembers, oldest first.
	writes []*unsyncedWrite
	// synced is how long the file was at the last sync.
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

// NewPowerLoss makes a machine that has lost nothing yet. Lose or Close lets go
// of the files it was given.
func NewPowerLoss() *PowerLoss { return &PowerLoss{files: map[fileID]*lossFile{}} }

// Wrap has the shape of DiskOptions.Wrap. When path cannot be opened, every
// operation of the file fails: a loss that loses nothing would be a blind test.
func (p *PowerLoss) Wrap(path string, f extent.File) extent.File {
	l, err := p.file(path)
	return &lossyFile{power: p, file: f, loss: l, err: err}
}

// file is the record of the file at path, new if it is not known yet.
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

// dropRemovedLocked forgets the files that no directory names any more.
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

// forgetLocked takes everything written to l for synced.
func (p *PowerLoss) forgetLocked(l *lossFile) {
	for _, versions := range l.sectors {
		p.held -= int64(len(versions)) * SectorSize
	}
	clear(l.sectors)
	l.writes = nil
}

// recordLocked enters a write of data at off; old holds, from sector first on,
// what was there before.
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
	limit := p.MaxBytes
	if limit == 0 {
		limit = DefaultPowerLossBytes
	}
	for p.held > limit {
		p.settleOldestLocked()
	}
}

// settleOldestLocked takes the oldest write of all files for synced.
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

// Close lets go of all files, which keep what they have. It comes after the last
// use of them.
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

// releaseLocked ends the record of l, but for its place in p.order.
func (p *PowerLoss) releaseLocked(l *lossFile) error {
	p.forgetLocked(l)
	delete(p.files, l.id)
	return l.own.Close()
}

func sectorEnd(off int64) int64 { return (off + SectorSize - 1) / SectorSize }
