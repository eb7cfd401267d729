package storagetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// LossReport says what a loss of power did. A write counts as having reached a sector
// that holds its bytes or newer ones.
type LossReport struct {
	// Sectors counts those written since the last sync of their file. Each now holds one
	// of its contents since.
	Sectors int
	// Kept writes reached all of their sectors, Dropped writes none, Torn writes some.
	Kept, Dropped, Torn int
	// Shortened files lost their growth since the last sync.
	Shortened int
	// Settled writes count as synced because of PowerLoss.MaxBytes.
	Settled int
}

// fate says what a loss of power does to one write.
type fate uint8

const (
	fateDrop fate = iota
	fateKeep
	// fateTear decides for each sector.
	fateTear
	numFates
)

// Lose cuts the power. Each sector written since the last sync of its file takes one of
// its versions, and files may lose their growth. Writes are dropped, kept and torn with
// equal probability. Operations on files that are still open return ErrPowerLost; Lose
// waits for those under way. Equal histories and equal numbers from rng give equal
// losses. The next Wrap of a file has no past.
func (p *PowerLoss) Lose(rng *rand.Rand) (LossReport, error) {
	p.mu.Lock()
	files := slices.Clone(p.order)
	p.mu.Unlock()
	for _, l := range files {
		l.busy.Lock()
		l.lost.Store(true)
		l.busy.Unlock()
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropRemovedLocked()
	report := LossReport{Settled: p.settled}
	p.settled = 0
	var errs []error
	var kept []*lossFile
	for _, l := range p.order {
		if !l.lost.Load() {
			kept = append(kept, l)
			continue
		}
		if err := l.lose(rng, &report); err != nil {
			errs = append(errs, fmt.Errorf("power loss: %s: %w", l.path, err))
		}
		errs = append(errs, p.releaseLocked(l))
	}
	p.order = kept
	return report, errors.Join(errs...)
}

// lose rewrites the sectors of one file with the versions that rng chooses, perhaps cuts the file to
// its length at the last sync, and counts all that in report.
func (l *lossFile) lose(rng *rand.Rand, report *LossReport) error {
	st, err := l.own.Stat()
	if err != nil {
		return err
	}
	fates := make(map[*unsyncedWrite]fate, len(l.writes))
	for _, w := range l.writes {
		fates[w] = fate(rng.IntN(int(numFates)))
	}
	reached := make(map[*unsyncedWrite]int64, len(l.writes)) // sectors that hold the write's bytes or newer
	out := sectorWriter{file: l, size: st.Size()}
	end := l.synced // behind the last sector that keeps an unsynced write
	for _, s := range slices.Sorted(maps.Keys(l.sectors)) {
		versions := l.sectors[s]
		chosen := choose(rng, versions, fates)
		for _, v := range versions[1 : chosen+1] {
			reached[v.by]++
		}
		if chosen > 0 {
			end = max(end, (s+1)*SectorSize)
		}
		if err := out.put(s, versions[chosen].data[:]); err != nil {
			return err
		}
		report.Sectors++
	}
	for _, w := range l.writes {
		switch reached[w] {
		case 0:
			report.Dropped++
		case w.end - w.first:
			report.Kept++
		default:
			report.Torn++
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	if end < st.Size() && rng.IntN(2) == 0 {
		if err := l.own.Truncate(end); err != nil {
			return err
		}
		report.Shortened++
	}
	return l.own.Sync()
}

// choose returns the index of the version that a sector keeps: the newest whose write is kept, or is
// torn and reaches this sector. Index 0 is the content at the last sync.
func choose(rng *rand.Rand, versions []sectorVersion, fates map[*unsyncedWrite]fate) int {
	for i := len(versions) - 1; i > 0; i-- {
		f := fates[versions[i].by]
		if f == fateKeep || f == fateTear && rng.IntN(2) == 0 {
			return i
		}
	}
	return 0
}

// sectorWriter writes sectors in ascending order, neighbours at once. It leaves out what
// lies past size: the file was cut there, and a cut counts as synced.
type sectorWriter struct {
	file  *lossFile
	size  int64
	start int64
	run   []byte
}

const maxSectorRun = 1 << 20

// put adds one sector of SectorSize bytes to the run. It writes the run first if the sector is not
// its next one.
func (w *sectorWriter) put(sector int64, data []byte) error {
	off := sector * SectorSize
	if off != w.start+int64(len(w.run)) || len(w.run) >= maxSectorRun {
		if err := w.flush(); err != nil {
			return err
		}
		w.start = off
	}
	w.run = append(w.run, data...)
	return nil
}

// flush writes the run.
func (w *sectorWriter) flush() error {
	n := min(int64(len(w.run)), max(w.size-w.start, 0))
	_, err := w.file.own.WriteAt(w.run[:n], w.start)
	w.run = w.run[:0]
	return err
}
