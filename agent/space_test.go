package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestTierThatCannotFitIsRefusedBeforeAnythingIsMade(t *testing.T) {
	cfg := testConfig(t)
	cfg.ExtentBytes, cfg.HostSetting = 1<<30, "BLOCKYARD_HOST_SIZE"
	cfg.HostBytes = 200_000 << 30 // below the bound of extents, above any node
	_, err := New(t.Context(), cfg, nil)
	if err == nil || !strings.Contains(err.Error(), "host size 214748364800000 (BLOCKYARD_HOST_SIZE)") {
		t.Errorf("got error %v, want the size and its setting", err)
	}
	if exists(cfg.HostDir) || exists(cfg.Socket) {
		t.Error("something was made")
	}
}

// What an earlier agent's files take is taken over and needs no room again.
func TestFilesOfAnEarlierAgentCountAsHeld(t *testing.T) {
	cfg := testConfig(t)
	if held, err := checkSpace(&cfg, zap.NewNop()); err != nil || held != 0 {
		t.Errorf("before: %d bytes held, error %v", held, err)
	}
	if err := os.MkdirAll(filepath.Join(cfg.HostDir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"extent-1", "extent-2"} {
		if err := os.WriteFile(filepath.Join(cfg.HostDir, name), make([]byte, 64<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if held, err := checkSpace(&cfg, zap.NewNop()); err != nil || held != 128<<10 {
		t.Errorf("%d bytes held, error %v, want %d", held, err, 128<<10)
	}
}
