package socket

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
)

// wantModes compares the permissions of files with the wanted ones.
func wantModes(t *testing.T, want map[string]os.FileMode) {
	t.Helper()
	for path, want := range want {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, error %v, want %v", path, info.Mode().Perm(), err, want)
		}
	}
}

// TestOpenChangesTheDirectoriesThatListenMade: another user can pass each of them, whatever the umask is,
// until no other user is allowed.
func TestOpenChangesTheDirectoriesThatListenMade(t *testing.T) {
	defer unix.Umask(unix.Umask(0o027))
	root := t.TempDir()
	agenttest.NoError(t, os.Chmod(root, 0o700)) // was there before, and keeps its mode
	outer := filepath.Join(root, "run")
	inner := filepath.Join(outer, "agent")
	path := filepath.Join(inner, "agent.sock")
	for _, atStart := range []bool{false, true} {
		agenttest.NoError(t, os.RemoveAll(outer))
		l, err := Listen(path, atStart, zap.NewNop())
		agenttest.NoError(t, err)
		for _, others := range []bool{atStart, true, false} {
			agenttest.NoError(t, l.Open([]uint32{65534}, others, zap.NewNop()))
			mode, dirMode := modes(others)
			wantModes(t, map[string]os.FileMode{root: 0o700, outer: dirMode, inner: dirMode, path: mode})
		}
		agenttest.NoError(t, l.Close())
	}
}

// TestOpenFailsWhenAUserCannotReachTheSocket: the directory was there before, so its mode stays.
func TestOpenFailsWhenAUserCannotReachTheSocket(t *testing.T) {
	dir, own := t.TempDir(), uint32(os.Getuid())
	path := filepath.Join(dir, "agent.sock")
	l, err := Listen(path, false, zap.NewNop())
	agenttest.NoError(t, err)
	other := own + 1
	for _, c := range []struct {
		mode os.FileMode
		uids []uint32
		ok   bool
	}{
		{0o700, []uint32{own, other}, false},
		{0o700, []uint32{own, 0}, true},
		{0o750, []uint32{own, other}, true}, // the user may be in the group
		{0o755, []uint32{own, other}, true},
	} {
		agenttest.NoError(t, l.Open([]uint32{own}, false, zap.NewNop()))
		agenttest.NoError(t, os.Chmod(dir, c.mode))
		err := l.Open(c.uids, true, zap.NewNop())
		mode := os.FileMode(openSocketMode)
		if !c.ok {
			mode = socketMode
		}
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "has mode 0700: want 0755") {
			t.Errorf("mode %v, users %d: %v", c.mode, c.uids, err)
		}
		wantModes(t, map[string]os.FileMode{dir: c.mode, path: mode})
	}
	agenttest.NoError(t, l.Close())
}
