package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestTierThatCannotFitIsRefusedBeforeAnythingIsMade(t *testing.T) {
	cfg := testConfig(t)
	cfg.ExtentBytes, cfg.HostSetting = 1<<30, "BLOCKYARD_HOST_SIZE"
	cfg.HostBytes = 200_000 << 30 // below the bound of extents, above any node
	_, err := New(t.Context(), cfg, nil)
	if err == nil || !strings.Contains(err.Error(), "host size 200000GiB (BLOCKYARD_HOST_SIZE)") {
		t.Errorf("got error %v, want the size and its setting", err)
	}
	if exists(cfg.HostDir) || exists(cfg.Socket) {
		t.Error("something was made")
	}
}

// What an earlier agent's files take is taken over and needs no room again; what
// else is in the directory does.
func TestOnlyFilesOfAnEarlierAgentCountAsHeld(t *testing.T) {
	cfg := testConfig(t)
	r := newTierRoom(&cfg, zap.NewNop())
	if n, err := r.lookAtNode(); err != nil || n.hostHeld != 0 {
		t.Errorf("before: %d bytes held, error %v", n.hostHeld, err)
	}
	if err := os.MkdirAll(cfg.HostDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"extent-00000001-00000007", "slots.table", "movie.mkv", "extent-1"} {
		if err := os.WriteFile(filepath.Join(cfg.HostDir, name), make([]byte, 64<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.lookAtNode(); err != nil || n.hostHeld != 128<<10 {
		t.Errorf("%d bytes held, error %v, want %d", n.hostHeld, err, 128<<10)
	}
}

// logged is a logger and what it was told at a level or above.
func logged(level zapcore.Level) (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(level)
	return zap.New(core), logs
}

// A number of blocks says how much memory they take only with the size of one.
func TestNamespaceWhoseNumberOfBlocksHasNoRoomIsRefusedBySetting(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"host": func(c *Config) { c.HostBytes, c.Tuning.HostBlocks, c.HostSetting = 0, blockmgr.MaxBlocks, "OVERRIDE" },
		"disk": func(c *Config) { c.DiskBytes, c.Tuning.DiskBlocks, c.DiskSetting = 0, blockmgr.MaxBlocks, "OVERRIDE" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			change(&cfg)
			log, logs := logged(zap.WarnLevel)
			a := startLoggedAgent(t, cfg, log)
			before := logs.Len()
			for range 3 {
				h := helloOf(1)
				h.Namespace.InnerDim = 4 << 10 // blocks of 512 KiB: petabytes
				_, err := a.dialWith(t, h)
				wantRefused(t, err, proto.CodeLimit)
				if err != nil && !strings.Contains(err.Error(), "lower OVERRIDE") {
					t.Errorf("refused with %v, want the setting", err)
				}
			}
			if n := logs.FilterMessage("namespace refused").Len(); n != 1 || logs.Len() != before+1 {
				t.Errorf("the log is told %d times, in %d lines, want once", n, logs.Len()-before)
			}
			if s := a.Stats(); len(s.Pools) != 0 || len(s.Streams) != 0 {
				t.Errorf("a refused namespace left %+v %+v", s.Pools, s.Streams)
			}
		})
	}
}

func TestNamespaceWhoseBlocksAreLargerThanATierIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"host size 1048576 (HOST)": func(c *Config) { c.HostSetting = "HOST" },
		"disk size 1048576 (DISK)": func(c *Config) { c.HostBytes, c.DiskBytes, c.DiskSetting = 4<<20, 1<<20, "DISK" },
		"disk size 1048576":        func(c *Config) { c.HostBytes, c.DiskBytes = 0, 1<<20 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			change(&cfg)
			log, logs := logged(zap.WarnLevel)
			a := startLoggedAgent(t, cfg, log)
			h := helloOf(1)
			h.Namespace.InnerDim = 16 << 10 // blocks of 2 MiB
			_, err := a.dialWith(t, h)
			wantRefused(t, err, proto.CodeNamespace)
			for _, want := range []string{name, "at least 2097152 bytes"} {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("refused with %v, want %q", err, want)
				}
			}
			if n := logs.FilterMessage("tier does not grow for now").Len(); n != 0 {
				t.Errorf("%d warnings that the tier does not grow", n)
			}
			a.scheduler(t, 2) // smaller blocks are welcome
		})
	}
}

func TestSpaceIsShownForEveryKindOfTier(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"sizes":  func(*Config) {},
		"blocks": func(c *Config) { c.HostBytes, c.Tuning.HostBlocks, c.DiskBytes, c.Tuning.DiskBlocks = 0, 10, 0, 10 },
		"bypass": func(c *Config) { c.HostBytes = 0 },
	} {
		cfg := testConfig(t)
		change(&cfg)
		a := startAgent(t, cfg)
		if s := a.Stats().Space; s.HostTotal == 0 || s.HostFree == 0 || s.DiskTotal == 0 || s.DiskFree == 0 {
			t.Errorf("%s: %+v", name, s)
		}
		a.scheduler(t, 1)
	}
}

func TestMemoryOfTiersCountsBlocksAndStaging(t *testing.T) {
	ns := testNamespace() // slots of 4 KiB
	small := share{slotBytes: 4096}
	for name, c := range map[string]struct {
		change                 func(*Config)
		host, disk, slots, own uint64
	}{
		"sizes":  {func(*Config) {}, 1 << 20, 4 << 20, 256, 0},
		"blocks": {func(c *Config) { c.HostBytes, c.Tuning.HostBlocks = 0, 100 }, 100 * 4096, 4 << 20, 100, 100 * 4096},
		"bypass": {func(c *Config) { c.HostBytes = 0 }, 64 * 4096, 4 << 20, 64, 64 * 4096},
	} {
		cfg := testConfig(t)
		c.change(&cfg)
		r := newTierRoom(&cfg, zap.NewNop())
		s, err := r.shareOf(&ns)
		if small.host = c.own; err != nil || s != small {
			t.Errorf("%s: share %+v, error %v, want %+v", name, s, err, small)
		}
		if w := r.want(map[kv.NamespaceID]share{ns.ID(): s}); w.HostBytes != c.host || w.DiskBytes != c.disk || w.HostSlots != c.slots {
			t.Errorf("%s: want %+v", name, w)
		}
	}
}

func TestAgentWithoutTiersSaysSoLoudly(t *testing.T) {
	cfg := testConfig(t)
	cfg.HostBytes, cfg.DiskBytes = 0, 0
	log, logs := logged(zap.WarnLevel)
	startLoggedAgent(t, cfg, log)
	if logs.FilterMessageSnippet("NO TIER IS ON").Len() != 1 {
		t.Errorf("the log says %+v", logs.All())
	}
}

func TestSpaceIsLookedAtInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t)
		r := newTierRoom(&cfg, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.run(ctx)
		time.Sleep(spaceInterval - 1)
		synctest.Wait()
		if s := *r.stats.Load(); s != (SpaceStats{}) {
			t.Errorf("too early: %+v", s)
		}
		time.Sleep(spaceInterval + 1) // two looks
		synctest.Wait()
		if s := *r.stats.Load(); s.HostTotal == 0 || s.DiskTotal == 0 {
			t.Errorf("after a look: %+v", s)
		}
	})
}

// Engines are processes of their own: one that hangs must not keep the tier pinned.
func TestPinsOfASessionAreBoundedByShare(t *testing.T) {
	if cfg := testConfig(t); !cfg.tiers().SharePins {
		t.Error("one session may pin the whole host tier")
	}
}
