package blockmgr

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/layout"
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
	_, err = p.m.Pool(testNamespace("third"))
	if !errors.Is(err, storage.ErrFull) || !strings.Contains(err.Error(), "host size 40960") {
		t.Errorf("third namespace: %v", err)
	}
}

func TestClosedManagerRefusesAndLeavesNoHostFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by-us")
	p := openTestPool(t, Config{HostDir: dir, HostBytes: hostBytes(4)})
	blocks := chain(1, 2)
	p.store(blocks)
	res, err := p.Lookup(t.Context(), 1, blocks)
	if err != nil {
		t.Fatal(err)
	}
	ch, stop := p.WatchExtents()
	if err := errors.Join(p.m.Close(), p.m.Close()); err != nil {
		t.Fatal(err)
	}
	<-ch
	if _, open := <-ch; open {
		t.Error("the watcher's channel is open")
	}
	stop()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("host directory: %v", err)
	}
	_, lookupErr := p.Lookup(context.Background(), 1, blocks)
	_, grantErr := p.Grant(1, blocks)
	_, poolErr := p.m.Pool(testNamespace("test"))
	for _, err := range []error{lookupErr, grantErr, poolErr, p.Unpin(1, res.Slots), p.Commit(1, nil), p.Abort(1, nil), p.BeginSession(9)} {
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
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{HostDir: dir, HostBytes: 100}, "host size 100: want 0 or at least 8192 bytes"},
		{Config{HostDir: dir, DiskDir: dir, DiskBytes: 1}, "disk size 1: want 0 or at least 8192 bytes"},
		{Config{HostBytes: 1 << 20}, `host directory "": must be set`},
		{Config{HostDir: dir, DiskBytes: 1 << 20}, `disk directory "": must be set`},
		{Config{HostDir: dir + "/", DiskDir: dir, DiskBytes: 1 << 20}, `disk directory "` + dir + `": must not be`},
		{Config{ExtentBytes: 2 << 30}, "extent size 2147483648: want 8192 to 1073741824 bytes"},
		{Config{HostDir: dir, HostBytes: 1 << 40, ExtentBytes: 8192}, "extent size 8192: makes 134217728 extents, want at most 262144"},
		{Config{MaxPinsPerSession: -1}, "pins per session -1: want"},
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
	if _, err := m.Pool(bad); err == nil || !strings.Contains(err.Error(), "outer_dim") {
		t.Errorf("bad namespace: %v", err)
	}
	big := testNamespace("big")
	big.InnerDim = 1 << 16
	if _, err := m.Pool(big); err == nil || !strings.Contains(err.Error(), "host size 1048576") {
		t.Errorf("block larger than the host tier: %v", err)
	}
}

func TestSlotBytesAreTheLayoutsAlignedStride(t *testing.T) {
	ns := testNamespace("test")
	l, err := layout.NewFullyContiguous(layout.Config{
		NumBlocks: 2, NumLayers: uint64(ns.Layers), OuterDim: uint64(ns.OuterDim), PageSize: uint64(ns.BlockSize),
		InnerDim: uint64(ns.InnerDim), Alignment: storage.PageSize, DTypeBytes: uint64(ns.DTypeBytes),
	})
	if err != nil {
		t.Fatal(err)
	}
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	if p.BlockBytes() != l.BlockBytes() || p.SlotBytes() != l.BlockStride() {
		t.Errorf("pool %d/%d, layout %d/%d", p.BlockBytes(), p.SlotBytes(), l.BlockBytes(), l.BlockStride())
	}
}
