package pools

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Where each namespace has a number of blocks of its own, room is made for one more
// too, but only if that gives it enough.
func TestIdleNamespaceMakesRoomWhereNumbersOfBlocksDo(t *testing.T) {
	tiers := testTiers(t)
	n, err := tiers.Measure(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	tiers.HostBytes, tiers.DiskBytes, tiers.DiskDir = 0, 0, ""
	tiers.HostBlocks = min(n.Host.Free/4096/7*2, uint64(blockmgr.MaxBlocks)) // room for three at most
	r := newAdmission(&tiers, node.Space{}, zap.NewNop())
	var idle []kv.NamespaceID
	unused := func() []kv.NamespaceID { return idle }
	admit := func(i int) error {
		ns := agenttest.NamespaceNumber(i)
		return r.admit(&ns, unused)
	}
	last := 0
	for err = admit(0); err == nil && last < 10; err = admit(last) {
		last++
	}
	if r := refused(err); err == nil || errors.Is(err, errNoRoom) || r.Code != proto.CodeLimit || !r.Retryable {
		t.Fatalf("namespace %d, with all in use: %v", last, err)
	}
	ns := agenttest.NamespaceNumber(0)
	idle = append(idle, ns.ID())
	if err := admit(last); !errors.Is(err, errNoRoom) {
		t.Errorf("with one that could go: %v", err)
	}
	r.release(ns.ID())
	if err := admit(last); err != nil {
		t.Errorf("when it has gone: %v", err)
	}
}

func TestMemoryOfTiersCountsBlocksAndStaging(t *testing.T) {
	ns := agenttest.Namespace() // slots of 4 KiB
	small := share{slotBytes: 4096}
	for name, c := range map[string]struct {
		change                 func(*node.Tiers)
		host, disk, slots, own uint64
	}{
		"sizes":  {func(*node.Tiers) {}, 1 << 20, 4 << 20, 256, 0},
		"blocks": {func(c *node.Tiers) { c.HostBytes, c.HostBlocks = 0, 100 }, 100 * 4096, 4 << 20, 100, 100 * 4096},
		"bypass": {func(c *node.Tiers) { c.HostBytes = 0 }, 64 * 4096, 4 << 20, 64, 64 * 4096},
	} {
		tiers := testTiers(t)
		c.change(&tiers)
		r := newAdmission(&tiers, node.Space{}, zap.NewNop())
		s, err := r.shareOf(&ns)
		if small.host = c.own; err != nil || s != small {
			t.Errorf("%s: share %+v, error %v, want %+v", name, s, err, small)
		}
		if w := r.want(map[kv.NamespaceID]share{ns.ID(): s}); w.HostBytes != c.host || w.DiskBytes != c.disk || w.HostSlots != c.slots {
			t.Errorf("%s: want %+v", name, w)
		}
	}
}

func TestSpaceIsLookedAtInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiers := testTiers(t)
		r := newAdmission(&tiers, node.Space{}, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		time.Sleep(spaceInterval - 1)
		synctest.Wait()
		if s := *r.stats.Load(); !reflect.DeepEqual(s, SpaceStats{}) {
			t.Errorf("too early: %+v", s)
		}
		time.Sleep(spaceInterval + 1) // two looks
		synctest.Wait()
		if s := *r.stats.Load(); s.HostTotal == 0 || s.DiskTotal == 0 {
			t.Errorf("after a measureSpaces: %+v", s)
		}
	})
}

func TestPoolIDsAreStableAndDistinct(t *testing.T) {
	ns := agenttest.Namespace()
	other := ns
	other.Weights = "other"
	id := ID("node-a", ns.ID())
	if id != ID("node-a", ns.ID()) || id == ID("node-b", ns.ID()) || id == ID("node-a", other.ID()) || id>>53 != 0 {
		t.Errorf("pool id %d", id)
	}
}

func testTiers(t *testing.T) node.Tiers {
	t.Helper()
	dir := t.TempDir()
	return node.Tiers{Config: blockmgr.Config{
		HostDir: filepath.Join(dir, "host"), HostBytes: 1 << 20,
		DiskDir: filepath.Join(dir, "disk"), DiskBytes: 4 << 20,
		ExtentBytes: 256 << 10,
	}}
}
