package blockmgr

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestNamespacesHaveExtentsOfTheirOwn(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4)})
	other, err := p.m.Pool(testNamespace("other"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Extents()[0].Path == other.Extents()[0].Path {
		t.Error("two namespaces share an extent")
	}
	if same, _ := p.m.Pool(testNamespace("test")); same != p.Pool {
		t.Error("a namespace has two pools")
	}
	if n := len(p.m.Pools()); n != 2 {
		t.Errorf("%d pools", n)
	}
}

func TestClosedManagerRefusesAndLeavesNoHostFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by-us")
	p := openTestPool(t, Config{HostDir: dir, HostBytes: hostBytes(4), DiscardHost: true})
	blocks := chain(1, 2)
	p.store(blocks)
	res, err := p.Lookup(t.Context(), 1, blocks)
	if err != nil {
		t.Fatal(err)
	}
	ch, stop := p.WatchExtents()
	noError(t, errors.Join(p.m.Close(), p.m.Close()))
	<-ch
	if _, open := <-ch; open {
		t.Error("the watcher's channel is open")
	}
	stop()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("host directory: %v", err)
	}
	_, lookupErr := p.Lookup(context.Background(), 1, blocks)
	_, grantErr := p.Grant(1, blocks, 0)
	_, poolErr := p.m.Pool(testNamespace("test"))
	_, keepErr := p.Keep(nil, time.Hour)
	for _, err := range []error{lookupErr, grantErr, poolErr, keepErr, p.Unpin(1, res.Slots), p.Commit(1, nil), p.Abort(1, nil), p.BeginSession(9)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	}
	p.EndSession(1, nil)
	if p.Dump() != nil {
		t.Error("a closed pool has blocks")
	}
	p.Stats()
	p.quiesce()
}

func TestErrorsNameFieldAndValue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a-file")
	noError(t, os.WriteFile(file, nil, 0o600))
	dir := t.TempDir()
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{HostDir: dir, HostBytes: 100}, "host size 100: want 0 or at least 4KiB"},
		{Config{HostDir: dir, DiskDir: dir, DiskBytes: 1}, "disk size 1: want 0 or at least 4KiB"},
		{Config{HostBytes: 1 << 20}, `host directory "": must be set`},
		{Config{HostDir: dir, DiskBytes: 1 << 20}, `disk directory "": must be set`},
		{Config{HostDir: dir + "/", DiskDir: dir, DiskBytes: 1 << 20}, `disk directory "` + dir + `": must not be`},
		{Config{ExtentBytes: 2 << 30}, "extent size 2GiB: want 4KiB to 1GiB"},
		{Config{HostDir: dir, HostBytes: 1 << 40, ExtentBytes: 8192}, "extent size 8KiB: makes 134217728 extents, want at most 16384"},
		{Config{MaxPinsPerSession: -1}, "pins per session -1: want"},
		{Config{HostNodes: []int{0, 1023}}, "memory node 1023 of the host tier: want 0 to 1022"},
		{Config{HostNodes: []int{-1}}, "memory node -1 of the host tier: want 0 to 1022"},
		{Config{Transfers: -1}, "concurrent transfers -1: want 0 (what the device takes) to 1024"},
		{Config{TransferBatch: 1025}, "transfer batch 1025: want 0 (default 64) to 1024 blocks"},
		{Config{IODeadline: -1}, "I/O deadline -1ns: want 0 (default 5s) or more"},
		{Config{Weights: map[string]uint64{"m": 0}}, `weight 0 of model "m": want 1 or more`},
		{Config{DirectIO: 7}, "direct I/O mode 7: want"},
		{Config{HostDir: filepath.Join(file, "x"), HostBytes: 1 << 20}, `host directory "` + file + `/x": mkdir`},
		{Config{HostDir: dir, DiskDir: filepath.Join(file, "x"), DiskBytes: 1 << 20}, `disk directory "` + file + `/x": mkdir`},
	} {
		m, err := Open(c.cfg)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	// A failed open leaves the directory to the next one.
	m, err := Open(Config{HostDir: dir, HostBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	bad := testNamespace("test")
	bad.OuterDim = 3
	if _, err := m.Pool(bad); !errors.Is(err, ErrNamespace) || !strings.Contains(err.Error(), "outer_dim") {
		t.Errorf("bad namespace: %v", err)
	}
	sparse := testNamespace("sparse")
	sparse.Layout = "layer_separate"
	if _, err := m.Pool(sparse); !errors.Is(err, ErrNamespace) || !strings.Contains(err.Error(), `layout "layer_separate": want "fully_contiguous"`) {
		t.Errorf("another layout: %v", err)
	}
	if n := len(m.Pools()) + len(m.entries); n != 0 {
		t.Errorf("refused namespaces left %d pools and places", n)
	}
}

// The pool's geometry is the layout's; what namespaces say of themselves, which
// limits and messages use, must be the same.
func TestBlockBytesAreTheLayouts(t *testing.T) {
	for _, change := range []func(*kv.Namespace){
		func(*kv.Namespace) {},
		func(ns *kv.Namespace) { ns.Layers, ns.OuterDim = 7, 1 },
		func(ns *kv.Namespace) { ns.BlockSize, ns.InnerDim, ns.DTypeBytes = 32, 1024, 1 },
	} {
		ns := testNamespace("test")
		change(&ns)
		l, err := blockLayout(&ns)
		if err != nil || l.BlockBytes() != ns.BlockBytes() || l.BlockStride()%storage.PageSize != 0 || l.BlockStride()-l.BlockBytes() >= storage.PageSize {
			t.Errorf("%+v: layout %d/%d, namespace %d, %v", ns, l.BlockBytes(), l.BlockStride(), ns.BlockBytes(), err)
		}
	}
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	if p.BlockBytes() != 2304 || p.SlotBytes() != testSlotBytes {
		t.Errorf("blocks of %d bytes in slots of %d", p.BlockBytes(), p.SlotBytes())
	}
}

// A directory named by mistake costs a start, not the blocks in it.
func TestHostDirectoryOverADiskTierIsRefusedAndKept(t *testing.T) {
	disk, host := t.TempDir(), t.TempDir()
	cfg := Config{HostDir: host, HostBytes: hostBytes(8), DiscardHost: true, DiskDir: disk, DiskBytes: 16 * testSlotBytes}
	p := openTestPool(t, cfg)
	blocks := chain(1, 4)
	p.store(blocks)
	p.quiesce()
	p.finish()

	swapped := Config{HostDir: disk, HostBytes: hostBytes(8)}
	if _, err := Open(swapped); !errors.Is(err, storage.ErrForeign) || !strings.Contains(err.Error(), "it is a disk table, want host") {
		t.Errorf("host directory over a disk tier: %v", err)
	}
	p = openTestPool(t, cfg)
	defer p.finish()
	if got := sources(p.find(blocks)); got != "DDDD" {
		t.Errorf("found %q", got)
	}
}

// Stats and the pools of other models do not wait for a pool that is being
// made, two callers make one pool, and Close waits.
func TestManagerDoesNotWaitForAPoolThatIsBeingMade(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var slow atomic.Bool
	p := newTestPool(t, Config{HostBytes: 4 * hostBytes(4), ExtentBytes: hostBytes(4), DiskBytes: 1 << 20, WrapDisk: func(_ string, f extent.File) extent.File {
		return &storagetest.Faulty{File: f, Plan: func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpAllocate && slow.Load() {
				once.Do(func() { close(entered) })
				<-release
			}
			return storagetest.FaultNone
		}}
	}})
	slow.Store(true)
	made := make(chan *Pool, 2)
	for range 2 {
		go func() {
			other, err := p.m.Pool(testNamespace("other"))
			if err != nil {
				t.Error(err)
			}
			made <- other
		}()
	}
	<-entered
	if n := len(p.m.Pools()); n != 1 {
		t.Errorf("%d pools", n)
	}
	if same, err := p.m.Pool(testNamespace("test")); same != p.Pool || err != nil {
		t.Errorf("the open pool: %v", err)
	}
	p.Stats()
	ns := testNamespace("other")
	waitFor(t, func() bool {
		p.m.mu.Lock()
		defer p.m.mu.Unlock()
		return p.m.entries[ns.ID()].callers == 2
	})
	closed := make(chan error)
	go func() { closed <- p.m.Close() }()
	waitFor(t, func() bool {
		p.m.mu.Lock()
		defer p.m.mu.Unlock()
		return p.m.closed
	})
	if _, err := p.m.Pool(testNamespace("late")); !errors.Is(err, ErrClosed) {
		t.Errorf("a pool of a manager that closes: %v", err)
	}
	select {
	case <-closed:
		t.Error("closed under a pool that is being made")
	default:
	}
	close(release)
	if a, b := <-made, <-made; a == nil || a != b {
		t.Error("two callers got two pools")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
