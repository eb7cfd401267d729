package agent_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
)

// An agent with a key writes nothing in clear to its disk. Another key ends the start of the next one, and a key
// without a disk tier ends every start.
func TestDiskKeyOfAnAgent(t *testing.T) {
	cfg := testConfig(t)
	key := filepath.Join(t.TempDir(), "key")
	agenttest.NoError(t, os.WriteFile(key, []byte(strings.Repeat("ab", 32)), 0o600))
	cfg.DiskKey = sealed.Source{File: key}
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	storeSalted(t, c, 1, "", 1, 4)
	agenttest.Eventually(t, "the blocks are on disk", func() bool {
		s := a.Stats()
		return s.Quiet && s.Pools[0].WriteBehind == 4
	})
	content := agenttest.Content(1, 2)[:64]
	if host, disk := holds(t, cfg.Tiers.HostDir, content), holds(t, cfg.Tiers.DiskDir, content); !host || disk {
		t.Errorf("bytes of blocks are in host memory: %t, on disk: %t", host, disk)
	}
	a.stop()
	other := cfg
	other.DiskKey = sealed.Source{Command: "echo " + strings.Repeat("cd", 32)}
	if _, err := agent.New(t.Context(), other, nil); !errors.Is(err, sealed.ErrKey) || !strings.Contains(err.Error(), "slots.key") {
		t.Errorf("a start with another key: %v", err)
	}
	other.DiskKey.File = key
	if err := other.Validate(); err == nil || !strings.Contains(err.Error(), "want one of them") {
		t.Errorf("two sources of the key: %v", err)
	}
	cfg.Tiers.DiskBytes = 0
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "disk size is 0") {
		t.Errorf("a key without a disk tier: %v", err)
	}
}

// holds reports whether a file of a directory has the bytes.
func holds(t *testing.T, dir string, content []byte) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	agenttest.NoError(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		agenttest.NoError(t, err)
		if bytes.Contains(data, content) {
			return true
		}
	}
	return false
}
