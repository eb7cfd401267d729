package blockmgr

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// sickDisk is a disk whose operations go wrong while it is set to.
type sickDisk struct {
	gate *storagetest.Gate
	// fault is what the operations of ops get, on the slot table only if tableOnly.
	fault atomic.Int32
	ops   []storagetest.Op
	// after is how many operations on each file go well first.
	after     int
	tableOnly bool
}

func (d *sickDisk) wrap(path string, f extent.File) extent.File {
	table := filepath.Base(path) == "slots.table"
	return &storagetest.Faulty{File: f, Gate: d.gate, Plan: func(op storagetest.Op, n int) storagetest.Fault {
		if d.tableOnly && !table || n <= d.after {
			return storagetest.FaultNone
		}
		for _, wanted := range d.ops {
			if op == wanted {
				return storagetest.Fault(d.fault.Load())
			}
		}
		return storagetest.FaultNone
	}}
}

func (d *sickDisk) stall() { d.fault.Store(int32(storagetest.FaultStall)) }

// recover lets all operations through, those that are stalled included.
func (d *sickDisk) recover() {
	d.fault.Store(int32(storagetest.FaultNone))
	d.gate.Release()
}

func allWrites() []storagetest.Op {
	return []storagetest.Op{storagetest.OpWrite, storagetest.OpAllocate, storagetest.OpSync}
}

// sickConfig has a host tier of 64 blocks and a disk tier of 64, on a sick disk.
func sickConfig(t *testing.T, d *sickDisk) Config {
	d.gate = &storagetest.Gate{}
	return Config{
		HostDir: t.TempDir(), HostBytes: hostBytes(64), ExtentBytes: hostBytes(8),
		DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes, WrapDisk: d.wrap, IODeadline: time.Second,
	}
}

// opensWithin opens a namespace, which must not take longer than the deadline and
// must serve from host memory at once.
func (p *testPool) opensWithin(model string, deadline time.Duration) *testPool {
	p.t.Helper()
	began := time.Now()
	q := p.openOther(model)
	if took := time.Since(began); took > deadline {
		p.t.Errorf("the pool of %s took %v", model, took)
	}
	blocks := chain(77, 4)
	if n, got := q.store(blocks), sources(q.find(blocks)); n != 4 || got != "HHHH" {
		p.t.Errorf("%d blocks stored, found %q", n, got)
	}
	return q
}

// settles waits until a pool has its disk tier and its blocks are in it.
func (p *testPool) settles(blocks []Block, want string) {
	p.t.Helper()
	waitFor(p.t, func() bool { p.retryDisk(); return !p.Stats().DiskJoining && p.tiersOf(blocks) == want })
	p.quiesce()
	p.check()
	p.checkEvents()
}

func TestDiskThatStallsDoesNotKeepANamespaceFromHostMemory(t *testing.T) {
	for name, d := range map[string]*sickDisk{
		"in the directory":  {ops: allWrites(), tableOnly: true},
		"in the first file": {ops: []storagetest.Op{storagetest.OpAllocate}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sickConfig(t, d)
			synctest.Test(t, func(t *testing.T) {
				m := openTestManager(t, cfg)
				d.stall()
				q := m.opensWithin("test", cfg.IODeadline)
				synctest.Wait()
				if st := q.Stats(); !st.DiskOpen || st.DiskJoining != d.tableOnly || st.Disk.Capacity != 0 {
					t.Errorf("%+v", st)
				}
				// Its next session does not wait either.
				began := time.Now()
				if again := m.openOther("test"); again.Pool != q.Pool || time.Since(began) != 0 {
					t.Errorf("the second session came after %v", time.Since(began))
				}
				d.recover()
				q.settles(chain(77, 4), "BBBB")
				if q.Stats().DiskOpen {
					t.Error("the disk is left alone although it works")
				}
				q.finish()
			})
		})
	}
}

func TestDiskThatStallsDoesNotKeepTheManagerFromOpening(t *testing.T) {
	for name, healed := range map[string]bool{"it answers later": true, "it answers after Close": false} {
		t.Run(name, func(t *testing.T) {
			d := &sickDisk{ops: allWrites(), tableOnly: true}
			cfg := sickConfig(t, d)
			synctest.Test(t, func(t *testing.T) {
				d.stall()
				began := time.Now()
				m := openTestManager(t, cfg)
				if took := time.Since(began); took != cfg.IODeadline {
					t.Errorf("opened after %v", took)
				}
				q := m.opensWithin("test", 0) // the disk is left alone
				if !healed {
					if err := m.m.Close(); !errors.Is(err, errStuck) {
						t.Errorf("close: %v", err)
					}
					d.recover()
					synctest.Wait()
					m = openTestManager(t, cfg) // nobody has the directories any more
					q = m.openOther("test")
				}
				d.recover()
				q.find(chain(77, 4))
				q.settles(chain(77, 4), "BBBB")
				q.finish()
			})
		})
	}
}

// What the earlier agent left joins as the disk hands it out.
func TestExtentsOfAnEarlierAgentJoinLater(t *testing.T) {
	// Opening the arena reads the head of each extent, of which there are four or five.
	for name, after := range map[string]int{"all of them": 5, "some of them": 7} {
		t.Run(name, func(t *testing.T) {
			healthy := &sickDisk{}
			cfg := sickConfig(t, healthy)
			p := openTestPool(t, cfg)
			blocks := chain(1, 32)
			for i := 0; i < len(blocks); i += 8 {
				p.store(blocks[i : i+8])
				p.quiesce()
			}
			p.finish()
			cfg.HostDir = t.TempDir()
			d := &sickDisk{gate: &storagetest.Gate{}, ops: []storagetest.Op{storagetest.OpRead}, after: after, tableOnly: true}
			cfg.WrapDisk = d.wrap
			synctest.Test(t, func(t *testing.T) {
				m := openTestManager(t, cfg)
				d.stall()
				q := m.opensWithin("test", cfg.IODeadline)
				if st := q.Stats(); !st.DiskJoining || st.Recovered > 24 || name == "some of them" && st.Recovered == 0 {
					t.Errorf("joining %v, %d blocks recovered", st.DiskJoining, st.Recovered)
				}
				q.check()
				q.checkEvents()
				if err := q.Reset(q.slots.Disk.Kind); !errors.Is(err, ErrActive) {
					t.Errorf("reset of a tier of which nobody knows all: %v", err)
				}
				d.recover()
				q.settles(chain(77, 4), "BBBB")
				waitFor(t, func() bool { return len(q.find(blocks)) == len(blocks) }) // host memory grows
				q.quiesce()
				q.finish()
			})
		})
	}
}

func TestDiskThatFailsAtFirstJoinsWhenItWorks(t *testing.T) {
	d := &sickDisk{ops: allWrites(), tableOnly: true}
	cfg := sickConfig(t, d)
	synctest.Test(t, func(t *testing.T) {
		m := openTestManager(t, cfg)
		d.fault.Store(int32(storagetest.FaultEIO))
		q := m.opensWithin("test", 0)
		time.Sleep(time.Minute)
		if st := q.Stats(); !st.DiskJoining || st.GrowErrors < 3 || !st.DiskOpen {
			t.Errorf("%+v", st)
		}
		// Nobody touches a disk that is left alone.
		q.leaveDiskAlone()
		tries := q.Stats().GrowErrors
		other := m.opensWithin("other", 0)
		if n := other.Stats().GrowErrors; n != 0 || q.Stats().GrowErrors != tries {
			t.Errorf("a disk that is left alone was tried %d times", n)
		}
		d.recover()
		time.Sleep(2 * time.Hour)
		q.settles(chain(77, 4), "BBBB")
		other.settles(chain(77, 4), "BBBB")
		q.finish()
	})
}

func TestCloseUnderADiskThatDoesNotAnswerEndsWithinTheDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		ops    []storagetest.Op
		begins func(t *testing.T, m *testPool, d *sickDisk)
	}{
		"last flush": {allWrites(), func(t *testing.T, m *testPool, d *sickDisk) {
			for _, model := range []string{"a", "b", "c"} {
				p := m.openOther(model)
				p.store(chain(1, 3))
				p.quiesce()
				p.storeAt(chain(1, 3), 5) // changes their records
			}
			d.stall()
		}},
		"joining": {allWrites(), func(t *testing.T, m *testPool, d *sickDisk) {
			d.stall()
			m.openOther("a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &sickDisk{ops: c.ops, tableOnly: true}
			cfg := sickConfig(t, d)
			synctest.Test(t, func(t *testing.T) {
				m := openTestManager(t, cfg)
				c.begins(t, m, d)
				began := time.Now()
				err := m.m.Close()
				if took := time.Since(began); !errors.Is(err, errStuck) || took > drainTime+cfg.IODeadline {
					t.Errorf("close after %v: %v", took, err)
				}
				d.recover()
			})
		})
	}
}
