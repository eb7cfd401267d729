package agent_test

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestTierThatCannotFitIsRefusedBeforeAnythingIsMade(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.ExtentBytes, cfg.Tiers.HostSetting = 1<<30, "BLOCKYARD_HOST_SIZE"
	cfg.Tiers.HostBytes = 200_000 << 30 // below the bound of extents, above any node
	_, err := agent.New(t.Context(), cfg, nil)
	if err == nil || !strings.Contains(err.Error(), "host size 200000GiB (BLOCKYARD_HOST_SIZE)") {
		t.Errorf("got error %v, want the size and its setting", err)
	}
	if agenttest.Exists(cfg.Tiers.HostDir) || agenttest.Exists(cfg.Socket) {
		t.Error("something was made")
	}
}

// logged is a logger and what it was told at a level or above.
func logged(level zapcore.Level) (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(level)
	return zap.New(core), logs
}

// A number of blocks says how much memory they take only with the size of one.
func TestNamespaceWhoseNumberOfBlocksHasNoRoomIsRefusedBySetting(t *testing.T) {
	for name, change := range map[string]func(*agent.Config){
		"host": func(c *agent.Config) {
			c.Tiers.HostBytes, c.Tiers.HostBlocks, c.Tiers.HostSetting = 0, blockmgr.MaxBlocks, "OVERRIDE"
		},
		"disk": func(c *agent.Config) {
			c.Tiers.DiskBytes, c.Tiers.DiskBlocks, c.Tiers.DiskSetting = 0, blockmgr.MaxBlocks, "OVERRIDE"
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			change(&cfg)
			log, logs := logged(zap.WarnLevel)
			a := startLoggedAgent(t, cfg, log)
			before := logs.Len()
			for range 3 {
				h := agenttest.Hello(1)
				h.Namespace.InnerDim = 4 << 10 // blocks of 512 KiB: petabytes
				_, err := a.DialWith(t, h)
				agenttest.WantRefused(t, err, proto.CodeLimit)
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
	for name, change := range map[string]func(*agent.Config){
		"host size 1048576 (HOST)": func(c *agent.Config) { c.Tiers.HostSetting = "HOST" },
		"disk size 1048576 (DISK)": func(c *agent.Config) {
			c.Tiers.HostBytes, c.Tiers.DiskBytes, c.Tiers.DiskSetting = 4<<20, 1<<20, "DISK"
		},
		"disk size 1048576": func(c *agent.Config) { c.Tiers.HostBytes, c.Tiers.DiskBytes = 0, 1<<20 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			change(&cfg)
			log, logs := logged(zap.WarnLevel)
			a := startLoggedAgent(t, cfg, log)
			h := agenttest.Hello(1)
			h.Namespace.InnerDim = 16 << 10 // blocks of 2 MiB
			_, err := a.DialWith(t, h)
			agenttest.WantRefused(t, err, proto.CodeNamespace)
			for _, want := range []string{name, "at least 2097152 bytes"} {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("refused with %v, want %q", err, want)
				}
			}
			if n := logs.FilterMessage("tier does not grow for now").Len(); n != 0 {
				t.Errorf("%d warnings that the tier does not grow", n)
			}
			a.Scheduler(t, 2) // smaller blocks are welcome
		})
	}
}

func TestSpaceIsShownForEveryKindOfTier(t *testing.T) {
	for name, change := range map[string]func(*agent.Config){
		"sizes": func(*agent.Config) {},
		"blocks": func(c *agent.Config) {
			c.Tiers.HostBytes, c.Tiers.HostBlocks, c.Tiers.DiskBytes, c.Tiers.DiskBlocks = 0, 10, 0, 10
		},
		"bypass": func(c *agent.Config) { c.Tiers.HostBytes = 0 },
	} {
		cfg := testConfig(t)
		change(&cfg)
		a := startAgent(t, cfg)
		if s := a.Stats().Space; s.HostTotal == 0 || s.HostFree == 0 || s.DiskTotal == 0 || s.DiskFree == 0 {
			t.Errorf("%s: %+v", name, s)
		}
		a.Scheduler(t, 1)
	}
}

func TestAgentWithoutTiersSaysSoLoudly(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.DiskBytes = 0, 0
	log, logs := logged(zap.WarnLevel)
	a := startLoggedAgent(t, cfg, log)
	if logs.FilterMessageSnippet("NO TIER IS ON").Len() != 1 {
		t.Errorf("the log says %+v", logs.All())
	}
	if a.Scheduler(t, 1).Welcome().HostEnabled {
		t.Error("WELCOME says that there is a host tier")
	}
}

// Engines are processes of their own: one that hangs must not keep the tier pinned.
func TestPinsOfASessionAreBoundedByShare(t *testing.T) {
	if cfg := testConfig(t); !cfg.BlockManager().SharePins {
		t.Error("one session may pin the whole host tier")
	}
}
