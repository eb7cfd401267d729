package stress

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// usedNames returns the names in a directory.
func usedNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// hostWorld returns a world with host memory only and one engine that can have
// everything.
func hostWorld(t *testing.T) (*world, *client, *blockmgr.Pool) {
	t.Helper()
	w, err := newWorld(variant{name: "test", namespaces: 1, host: 32, disk: 64, extent: 16}, 1, t.TempDir(), t.TempDir(), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	w.maxSlots = 100
	c := w.clients[0]
	pool, err := w.enter(c)
	if err != nil {
		t.Fatal(err)
	}
	return w, c, pool
}

func (w *world) must(t *testing.T, kind opKind) {
	t.Helper()
	if err := w.apply(&operation{kind: kind, end: 4, n: 4}); err != nil {
		t.Fatal(err)
	}
}

func TestAnyFlippedBitOfAContentIsSeen(t *testing.T) {
	ns := makeNamespaces(1, false)[0]
	b := ns.groups[0][0][0]
	data := make([]byte, ns.desc.BlockBytes())
	fill(data, b.Key, 77)
	if !holds(data, b.Key, 77) || holds(data, b.Key, 78) || holds(data, ns.groups[0][0][1].Key, 77) {
		t.Fatal("a content is not that of its key and nonce alone")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		bit := rng.IntN(8 * len(data))
		data[bit/8] ^= 1 << (bit % 8)
		if holds(data, b.Key, 77) {
			t.Fatalf("flipped bit %d is not seen", bit)
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
}

func TestStreamIsTheSeedsAlone(t *testing.T) {
	one, same, other := stream(4, 500), stream(4, 500), stream(5, 500)
	if !slices.Equal(one, same) || slices.Equal(one, other) {
		t.Error("a stream is not that of its seed")
	}
	var kinds [numOpKinds]int
	for _, o := range stream(6, 20_000) {
		kinds[o.kind]++
		if o.first >= o.end || o.end > chainLen || o.chain >= chains {
			t.Fatalf("%+v", o)
		}
	}
	if i := slices.Index(kinds[:], 0); i >= 0 {
		t.Errorf("operation %d never comes", i)
	}
}

func TestWrongByteIsReportedWithKeyAndContents(t *testing.T) {
	w, c, pool := hostWorld(t)
	w.must(t, opGrant)
	first := c.grants[0]
	w.must(t, opCommit)
	w.must(t, opLookup)
	// Somebody writes another commit's bytes under a pin.
	data := w.buffer(0)
	fill(data, first.block.Key, 4711)
	if err := w.memory.write(pool, first.slot, data); err != nil {
		t.Fatal(err)
	}
	var wrong *wrongByte
	err := w.apply(&operation{kind: opLookup, end: 1})
	if !errors.As(err, &wrong) || wrong.got != 4711 || !slices.Equal(wrong.allowed, []uint64{first.nonce}) {
		t.Errorf("looked up: %v", err)
	}
	if err := w.apply(&operation{kind: opUnpin, n: 1}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), first.block.Key.String()) {
		t.Errorf("unpinned: %v", err)
	}
	w.control = true
	if err := w.apply(&operation{kind: opLookup, end: 1}); err != nil || w.total.WrongBytes == 0 {
		t.Errorf("%d wrong bytes counted, %v", w.total.WrongBytes, err)
	}
}

func TestByteWrittenIntoAnothersGrantIsSeen(t *testing.T) {
	w, c, pool := hostWorld(t)
	w.must(t, opGrant)
	data := make([]byte, 8)
	if err := w.memory.write(pool, c.grants[2].slot, data); err != nil {
		t.Fatal(err)
	}
	var wrong *wrongByte
	if err := w.apply(&operation{kind: opCommit, n: 3}); !errors.As(err, &wrong) {
		t.Errorf("%v", err)
	}
}

func TestSlotGrantedWhileSomebodyHoldsItIsSeen(t *testing.T) {
	w, c, _ := hostWorld(t)
	w.must(t, opGrant)
	slot := c.grants[0].slot
	if err := w.checkExclusive(slot); err == nil || !strings.Contains(err.Error(), "granted at generation") {
		t.Errorf("same generation: %v", err)
	}
	slot.Generation++
	if err := w.checkExclusive(slot); err == nil || !strings.Contains(err.Error(), "holds it") {
		t.Errorf("held slot: %v", err)
	}
	w.must(t, opDie)
	slot.Generation++
	if err := w.checkExclusive(slot); err == nil {
		t.Error("slot of a session whose workers still write")
	}
}

func TestLedgerKnowsWhatACopyMayHold(t *testing.T) {
	ns := makeNamespaces(1, false)[0]
	b := ns.groups[0][0][0]
	other := ns.groups[0][0][1]
	commit := func(l *ledger, s blockmgr.EventSink, nonce uint64) {
		l.commit(ns.id, []grant{{block: &b, nonce: nonce}})
		s.BlockStored(ns.id, kv.TierHost, b)
	}
	start := func() (*ledger, blockmgr.EventSink) {
		l := newLedger()
		s := l.begin()
		_ = l.open(ns.id, false)
		return l, s
	}
	// After 1 went to disk and left host memory, 2 was committed; 2 is not on disk.
	twice := func() (*ledger, blockmgr.EventSink) {
		l, s := start()
		commit(l, s, 1)
		s.BlockStored(ns.id, kv.TierDisk, b)
		s.BlockRemoved(ns.id, kv.TierHost, b)
		s.BlockRemoved(ns.id, kv.TierDisk, b)
		commit(l, s, 2)
		s.BlockStored(ns.id, kv.TierDisk, b)
		s.BlockRemoved(ns.id, kv.TierHost, b)
		return l, s
	}
	next := func(l *ledger, how ending, tiers ...kv.Tier) error {
		l.end(how)
		s := l.begin()
		for _, t := range tiers {
			s.BlockStored(ns.id, t, b)
		}
		err := l.open(ns.id, false)
		if err == nil && !slices.Contains(tiers, kv.TierHost) {
			s.BlockStored(ns.id, kv.TierHost, b) // it is read from disk
		}
		return err
	}
	serves := func(l *ledger, nonces ...uint64) bool {
		for _, n := range nonces {
			if _, ok := l.serve(ns.id, b.Key, n); !ok {
				return false
			}
		}
		return true
	}

	l, s := start()
	commit(l, s, 1)
	if serves(l, 2) || !serves(l, 1) {
		t.Error("a committed copy holds its commit and no other")
	}
	l, s = twice()
	s.BlockStored(ns.id, kv.TierHost, b)
	if serves(l, 1) || !serves(l, 2) {
		t.Error("a copy read from disk holds what the disk copy held")
	}
	l, _ = twice()
	if err := next(l, ending{flushed: true}, kv.TierDisk); err != nil || serves(l, 1) || !serves(l, 2) {
		t.Errorf("a disk copy holds what it held when the agent was closed: %v", err)
	}
	l, _ = twice()
	if err := next(l, ending{}, kv.TierDisk); err != nil || !serves(l, 1) || serves(l, 2) {
		t.Errorf("a disk copy may be an older one after a kill, and stays the same one: %v", err)
	}
	l, _ = twice()
	if err := next(l, ending{flushed: true, lossless: true}); err == nil {
		t.Error("a block that is gone after a good close is lost")
	}
	l, _ = twice()
	l.end(ending{flushed: true})
	s = l.begin()
	if err := l.open(ns.id, true); err != nil {
		t.Error(err)
	}
	s.BlockStored(ns.id, kv.TierDisk, b)
	s.BlockStored(ns.id, kv.TierHost, b)
	if l.broken != nil || serves(l, 1) || !serves(l, 2) {
		t.Errorf("a disk copy may come back while the disk joins: %v", l.broken)
	}
	l, _ = twice()
	l.end(ending{flushed: true})
	s = l.begin()
	_ = l.open(ns.id, true)
	l.joined(ns.id)
	if s.BlockStored(ns.id, kv.TierDisk, b); l.broken == nil {
		t.Error("a disk copy comes back after the disk has joined")
	}
	l, s = start()
	commit(l, s, 1)
	if err := next(l, ending{reverted: true, hostLost: true}, kv.TierHost); err == nil {
		t.Error("host memory comes back after a loss of power")
	}
	for name, event := range map[string]func(blockmgr.EventSink){
		"stored twice":          func(s blockmgr.EventSink) { s.BlockStored(ns.id, kv.TierHost, b) },
		"stored out of nothing": func(s blockmgr.EventSink) { s.BlockStored(ns.id, kv.TierDisk, other) },
		"removed and not there": func(s blockmgr.EventSink) { s.BlockRemoved(ns.id, kv.TierDisk, b) },
	} {
		l, s := start()
		commit(l, s, 1)
		event(s)
		if l.broken == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSpoiledRecordsAndBytesAreFoundInFiles(t *testing.T) {
	w, _, pool := hostWorld(t)
	w.must(t, opGrant)
	w.must(t, opCommit)
	if err := w.settle(pool); err != nil {
		t.Fatal(err)
	}
	w.variant.spoil = true
	if got := len(w.targets()); got != 8 {
		t.Errorf("%d copies of 4 blocks in two tiers", got)
	}
	for _, dir := range []string{w.cfg.HostDir, w.cfg.DiskDir} {
		if records, err := usedRecords(filepath.Join(dir, "slots.table")); err != nil || len(records) < 4 {
			t.Errorf("%d records in %s, %v", len(records), filepath.Base(dir), err)
		}
	}
}

func TestRecordDamagedWhileNoAgentRunsCountsAsTorn(t *testing.T) {
	w, _, pool := hostWorld(t)
	w.must(t, opGrant)
	w.must(t, opCommit)
	if err := w.settle(pool); err != nil {
		t.Fatal(err)
	}
	if err := w.kill(deathKill, nil); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	w.decideFates(deathKill, rng)
	for _, dir := range []string{w.cfg.HostDir, w.cfg.DiskDir} {
		path := filepath.Join(dir, "slots.table")
		records, err := usedRecords(path)
		if err != nil {
			t.Fatal(err)
		}
		if flipped, err := flip(path, records[0]+90, rng); !flipped || err != nil {
			t.Fatalf("flipped %v, %v", flipped, err)
		}
	}
	if err := w.boot(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool(0); err != nil {
		t.Fatal(err)
	}
	w.total.life(w.opened())
	if w.total.Torn != 2 {
		t.Errorf("%d torn, want a record of each tier", w.total.Torn)
	}
}

func TestCutMachineLetsNothingOfTheDeadAgentThrough(t *testing.T) {
	m := newMachine(1, faultRates(0))
	path := filepath.Join(t.TempDir(), "file")
	raw, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	f := m.connect()(path, plainFile{raw})
	m.cut()
	if _, err := f.WriteAt(make([]byte, storage.PageSize), 0); !errors.Is(err, errCut) {
		t.Errorf("write: %v", err)
	}
	if st, err := raw.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("the write reached the disk: %v", err)
	}
	if err := m.power.Close(); err != nil {
		t.Error(err)
	}
}

// plainFile is an os.File as a extent.File.
type plainFile struct{ *os.File }

// Allocate implements extent.File.
func (f plainFile) Allocate(size int64) error { return f.Truncate(size) }
