package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const nobody = 65534

func TestAllowedUserReachesTheSocketAndAnotherIsDenied(t *testing.T) {
	cfg := testConfig(t)
	dir, err := os.MkdirTemp("", "blockyard") // t.TempDir is its owner's alone
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	agenttest.NoError(t, os.Chmod(dir, 0o755))
	cfg.Socket = filepath.Join(dir, "run", "agent.sock")
	cfg.AllowUIDs = []uint32{uint32(os.Getuid()), nobody}
	a := startAgent(t, cfg)
	for path, want := range map[string]os.FileMode{cfg.Socket: 0o666, filepath.Dir(cfg.Socket): 0o755} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, error %v, want %v", path, info.Mode(), err, want)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can become other users")
	}
	if err := a.connectAs(t, nobody); err != nil {
		t.Errorf("the allowed user: %v", err)
	}
	err = a.connectAs(t, nobody-1)
	agenttest.WantRefused(t, err, proto.CodeDenied)
}

// firstError is what the agent refuses a connection with before it reads anything;
// nil when it waits for HELLO.
func firstError(c *proto.Conn) error {
	if err := c.SetReceiveDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	f, err := c.Receive()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	var e proto.Error
	if err == nil {
		err = proto.Decode(f.Type, f.Body, &e)
	}
	if err == nil {
		err = &proto.RefusedError{Reply: e}
	}
	return err
}

// connectAs connects as another user. The thread that was that user is thrown
// away.
func (a *testAgent) connectAs(t *testing.T, uid int) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			result <- errno
			return
		}
		c, err := proto.Dial(t.Context(), string(a.Socket))
		if err != nil {
			result <- err
			return
		}
		defer c.Close()
		result <- firstError(c)
	}()
	return <-result
}
