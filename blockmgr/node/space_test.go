package node

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// What an earlier agent's files take is taken over and needs no room again; what
// else is in the directory does.
func TestOnlyFilesOfAnEarlierAgentCountAsHeld(t *testing.T) {
	tiers := Tiers{Config: blockmgr.Config{HostDir: filepath.Join(t.TempDir(), "host"), HostBytes: 1 << 20}}
	if n, err := tiers.Measure(zap.NewNop()); err != nil || n.hostHeld != 0 {
		t.Errorf("before: %d bytes held, error %v", n.hostHeld, err)
	}
	if err := os.MkdirAll(tiers.HostDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"extent-00000001-00000007", "slots.table", "movie.mkv", "extent-1"} {
		if err := os.WriteFile(filepath.Join(tiers.HostDir, name), make([]byte, 64<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := tiers.Measure(zap.NewNop()); err != nil || n.hostHeld != 128<<10 {
		t.Errorf("%d bytes held, error %v, want %d", n.hostHeld, err, 128<<10)
	}
}
