package blockmgr

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// retires ends the pool's own session and closes the pool, which must be possible.
func (p *testPool) retires() {
	p.t.Helper()
	p.quiesce()
	p.EndSession(p.sid, nil)
	gone, err := p.Retire()
	if err != nil {
		p.t.Fatalf("retire: %v", err)
	}
	<-gone
}

// extentNames are the extents' files in some directories.
func extentNames(t *testing.T, dirs ...string) (names []string) {
	t.Helper()
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, "extent-*"))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

func TestRetiredPoolGivesEverythingBack(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(8), DiskBytes: 16 * testSlotBytes}
	p := openTestPool(t, cfg)
	blocks := chain(1, 6)
	p.store(blocks)
	p.quiesce()
	if got := p.tiersOf(blocks); got != "BBBBBB" {
		t.Fatalf("stored %q", got)
	}
	p.retires()
	if len(p.sink.resident) != 0 {
		t.Errorf("the removal of %d blocks was not reported", len(p.sink.resident))
	}
	if names := extentNames(t, cfg.HostDir, cfg.DiskDir); len(names) != 0 || len(p.m.Pools()) != 0 {
		t.Errorf("%v and %d pools are left", names, len(p.m.Pools()))
	}
	if _, got := p.m.Census(); got.Pools != 1 || got.Committed != 6 || got.WriteBehind != 6 || got.BytesWritten == 0 {
		t.Errorf("%+v", got)
	}
	for what, err := range map[string]error{
		"session": p.BeginSession(99), "reset": p.ResetAll(), "status": func() error { _, err := p.Status(kv.TierHost); return err }(),
		"retire": func() error { _, err := p.Retire(); return err }(),
	} {
		if !errors.Is(err, ErrRetired) {
			t.Errorf("%s of a pool that is gone: %v", what, err)
		}
	}
	if p.Dump() != nil || p.Touch([]kv.StoredKey{blocks[0].Key}) != 0 {
		t.Error("a pool that is gone has blocks")
	}
	other := p.openOther("other")
	if n := other.store(chain(2, 8)); n != 8 {
		t.Errorf("another namespace got %d slots of 8", n)
	}
	other.quiesce()
	other.retires()
	again := p.openOther("test")
	if got := sources(again.find(blocks)); got != "" || again.Pool == p.Pool {
		t.Errorf("the namespace found %q again", got)
	}
	again.store(blocks)
	again.quiesce()
	again.finish()
}

func TestPoolThatIsInUseIsNotRetired(t *testing.T) {
	for name, use := range map[string]func(p *testPool, b []Block) (end func()){
		"session": func(p *testPool, _ []Block) func() {
			s := p.begin()
			return func() { p.EndSession(s, nil) }
		},
		"session whose processes live": func(p *testPool, _ []Block) func() {
			s, gone := p.begin(), make(chan struct{})
			p.grant(s, chain(9, 1))
			p.EndSession(s, gone)
			return func() { close(gone) }
		},
		"watcher": func(p *testPool, _ []Block) func() {
			_, stop := p.WatchExtents()
			return stop
		},
		"kept": func(p *testPool, b []Block) func() {
			if n, err := p.Keep([]kv.StoredKey{b[0].Key}, time.Second); err != nil || n != 1 {
				p.t.Fatalf("kept %d, %v", n, err)
			}
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := diskPool(t, nil)
			blocks := chain(1, 4)
			p.store(blocks)
			p.quiesce()
			end := use(p, blocks)
			p.EndSession(p.sid, nil)
			if _, _, unused := p.Unused(); unused {
				t.Error("it passes for unused")
			}
			if _, err := p.Retire(); !errors.Is(err, ErrActive) {
				t.Errorf("retire: %v", err)
			}
			if got := p.tiersOf(blocks); got != "BBBB" {
				t.Errorf("resident %q", got)
			}
			end()
			waitFor(t, func() bool { _, _, unused := p.Unused(); return unused })
			if gone, err := p.Retire(); err != nil {
				t.Error(err)
			} else {
				<-gone
			}
		})
	}
}

// More namespaces than a slot table has room for come one after the other, beside
// one that stays.
func TestNamespacesMayComeAndGoForEver(t *testing.T) {
	cfg := Config{
		HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(8), DiskBytes: 16 * testSlotBytes,
		ExtentBytes: hostBytes(2),
	}
	p := newTestPool(t, cfg)
	blocks := chain(1, 2)
	p.store(blocks)
	for i := range 3 * storage.MaxNamespaces {
		q := p.openOther(fmt.Sprint(i))
		if n := q.store(chain(uint64(i), 2)); n != 2 {
			t.Fatalf("namespace %d: %d of 2 blocks stored", i, n)
		}
		q.quiesce()
		if got := q.tiersOf(chain(uint64(i), 2)); got != "BB" {
			t.Fatalf("namespace %d: stored %q", i, got)
		}
		q.check()
		q.retires()
	}
	p.quiesce()
	st := p.Stats()
	if n := len(extentNames(t, cfg.HostDir, cfg.DiskDir)); n != st.Host.Extents+st.Disk.Extents || len(p.m.entries) != 1 {
		t.Errorf("%d extents and %d places are left, want %d and 1", n, len(p.m.entries), st.Host.Extents+st.Disk.Extents)
	}
	if got := p.tiersOf(blocks); got != "BB" {
		t.Errorf("the namespace that stayed has %q", got)
	}
}

// Opening, using and retiring one namespace from everywhere leaves no trace.
func TestPoolIsOpenedAndRetiredAtOnce(t *testing.T) {
	p := diskPool(t, nil)
	p.retires()
	var users sync.WaitGroup
	for n := range 4 {
		users.Go(func() {
			for i := range 50 {
				pool, err := p.m.Pool(testNamespace("shared"))
				if err != nil {
					t.Error(err)
					return
				}
				s := SessionID(1000*(n+1) + i)
				if err := pool.BeginSession(s); err == nil {
					if _, err := pool.Grant(s, chain(uint64(i), 1), 0); err != nil {
						t.Error(err)
					}
					pool.EndSession(s, nil)
				} else if !errors.Is(err, ErrRetired) {
					t.Error(err)
				}
				if gone, err := pool.Retire(); err == nil {
					<-gone
				} else if !errors.Is(err, ErrActive) && !errors.Is(err, ErrRetired) {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	last := p.openOther("shared")
	last.check()
	last.retires()
	if len(p.m.entries) != 0 {
		t.Errorf("%d places are left", len(p.m.entries))
	}
}

// A pool whose disk does not answer gives its room back when it does, and holds
// neither its caller nor Close up for long.
func TestPoolIsRetiredUnderADiskThatStalls(t *testing.T) {
	for name, healed := range map[string]bool{"it answers": true, "it answers after Close": false} {
		t.Run(name, func(t *testing.T) {
			d := &sickDisk{ops: allWrites(), tableOnly: true}
			cfg := sickConfig(t, d)
			synctest.Test(t, func(t *testing.T) {
				m := openTestManager(t, cfg)
				d.stall()
				q := m.openOther("test")
				q.EndSession(q.sid, nil)
				gone, err := q.Retire()
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				select {
				case <-gone:
					t.Error("it is gone although its goroutines are stuck")
				default:
				}
				if !healed {
					began := time.Now()
					if err := m.m.Close(); !errors.Is(err, errStuck) || time.Since(began) > drainTime+2*cfg.IODeadline {
						t.Errorf("close after %v: %v", time.Since(began), err)
					}
				}
				d.recover()
				<-gone
				if healed {
					if err := m.m.Close(); err != nil {
						t.Error(err)
					}
				}
				synctest.Wait()
			})
		})
	}
}

// failsLate is a slot table whose writes wait and then fail.
type failsLate struct {
	extent.File
	fail <-chan struct{}
}

func (f *failsLate) WriteAt([]byte, int64) (int, error) {
	<-f.fail
	return 0, unix.EIO
}

// A disk tier that could not be opened in the end is none: its pools are whole
// without it.
func TestDiskThatFailsInTheEndIsNotWaitedFor(t *testing.T) {
	var fail chan struct{}
	cfg := sickConfig(t, &sickDisk{})
	cfg.WrapDisk = func(path string, f extent.File) extent.File {
		if filepath.Base(path) == "slots.table" {
			return &failsLate{f, fail}
		}
		return f
	}
	synctest.Test(t, func(t *testing.T) {
		fail = make(chan struct{})
		m := openTestManager(t, cfg)
		q := m.opensWithin("test", 0)
		if !q.Stats().DiskJoining {
			t.Error("the disk is not waited for")
		}
		q.quiesce()
		close(fail)
		synctest.Wait()
		if q.Stats().DiskJoining {
			t.Error("the disk is waited for for ever")
		}
		late := m.opensWithin("late", 0)
		synctest.Wait()
		if late.Stats().DiskJoining {
			t.Error("a pool that came later waits for the disk")
		}
		q.quiesce()
		if err := q.ResetAll(); err != nil {
			t.Errorf("reset: %v", err)
		}
		if got := q.tiersOf(chain(77, 4)); got != "----" {
			t.Errorf("resident %q", got)
		}
		late.retires()
		q.finish()
	})
	if names, err := os.ReadDir(cfg.DiskDir); err != nil || len(names) > 1 {
		t.Errorf("%v, %v", names, err)
	}
}
