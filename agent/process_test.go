package agent

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Only a kernel that gives each process its own inode tells processes apart that
// are out of sight; elsewhere the pid does, and 0 stands for all that have none.
func TestProcessKeys(t *testing.T) {
	f, err := os.Open(os.DevNull) // not on pidfs, as pidfds of older kernels
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for pid, want := range map[int32]processKey{7: {pid: 7}, 0: {}, -1: {}} {
		if got := keyOf(int(f.Fd()), pid); got != want {
			t.Errorf("pid %d: got %+v, want %+v", pid, got, want)
		}
	}
	keys := make(map[processKey]bool)
	for _, pid := range []int{os.Getpid(), os.Getpid(), os.Getppid()} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Skip(err)
		}
		keys[keyOf(fd, int32(pid))] = true
		unix.Close(fd)
	}
	if len(keys) != 2 || keys[processKey{}] {
		t.Errorf("two processes have the keys %v", keys)
	}
}
