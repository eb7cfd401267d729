package storage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// What a power loss may take are the changes since the last sync: the arena
// itself, its extents and their namespaces stay, and a record, which lies in one
// sector, is one of those that were put.
func TestPowerLossTakesRecordsAndNeverTheArena(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		loss := storagetest.NewPowerLoss()
		cfg := diskConfig(t.TempDir())
		cfg.Disk.Wrap = loss.Wrap
		d := openDisk(t, cfg)
		gone, part := growDisk(t, d, nsB), growDisk(t, d, nsA)
		gone.Slots.Put(0, &Record{Generation: 9, State: StateSealed})
		noError(t, WritePages(gone.Slots.TakeDirty(nil)))
		d.Drop(gone)
		next := growDisk(t, d, nsA)
		for i := range part.Slots.Slots() {
			part.Slots.Put(i, &Record{Generation: 2, State: StateSealed})
			next.Slots.Put(i, &Record{Generation: 2, State: StateGranted})
		}
		noError(t, WritePages(next.Slots.TakeDirty(part.Slots.TakeDirty(nil))))
		noError(t, d.Sync())
		part.Slots.Put(1, &Record{Generation: 3, State: StateSealed})
		noError(t, WritePages(part.Slots.TakeDirty(nil)))
		d.Abandon([]DiskExtent{part, next})
		if _, err := loss.Lose(rng); err != nil {
			t.Fatal(err)
		}

		d = openDisk(t, diskConfig(cfg.Dir))
		ns := indexOf(t, d.arena, nsA)
		parts := slices.Collect(d.Claim(ns))
		if !d.table.sectionsHold || len(parts) != 2 {
			t.Fatalf("seed %d: warm %v, extents %v", seed, d.table.sectionsHold, parts)
		}
		for i := range part.Slots.Slots() {
			r, err := parts[0].Slots.Get(i)
			if err != nil || r.Generation != 2 && (i != 1 || r.Generation != 3) {
				t.Errorf("seed %d, slot %d: %+v, %v", seed, i, r, err)
			}
			if r, err := parts[1].Slots.Get(i); err != nil || r.State != StateGranted {
				t.Errorf("seed %d, slot %d of the later extent: %+v, %v", seed, i, r, err)
			}
		}
		noError(t, d.Close(parts))
	}
}

// A power loss while an extent is made leaves it whole or gone, and never with
// the records of the extent that had its place in the table before.
func TestPowerLossWhileAnExtentIsMade(t *testing.T) {
	for seed := range uint64(30) {
		loss := storagetest.NewPowerLoss()
		cfg := diskConfig(t.TempDir())
		cfg.Disk.Wrap = loss.Wrap
		d := openDisk(t, cfg)
		gone := growDisk(t, d, nsA)
		for i := range gone.Slots.Slots() {
			gone.Slots.Put(i, &Record{Generation: 9, State: StateSealed})
		}
		noError(t, WritePages(gone.Slots.TakeDirty(nil)))
		d.Drop(gone)
		part := growDisk(t, d, nsA)
		d.Abandon([]DiskExtent{part})
		if _, err := loss.Lose(rand.New(rand.NewPCG(seed, 2))); err != nil {
			t.Fatal(err)
		}
		d = openDisk(t, diskConfig(cfg.Dir))
		ns := indexOf(t, d.arena, nsA)
		parts := slices.Collect(d.Claim(ns))
		for _, p := range parts {
			for i := range p.Slots.Slots() {
				if r, err := p.Slots.Get(i); err != nil || r.State != StateFree {
					t.Errorf("seed %d, slot %d: %+v, %v", seed, i, r, err)
				}
			}
		}
		noError(t, d.Close(parts))
	}
}
