package process

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// Only a kernel that gives each process its own inode tells processes apart that
// are out of sight; elsewhere the pid does, and 0 stands for all that have none.
func TestProcessKeys(t *testing.T) {
	f, err := os.Open(os.DevNull) // not on pidfs, as pidfds of older kernels
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for pid, want := range map[int32]Key{7: {pid: 7}, 0: {}, -1: {}} {
		if got := keyOf(int(f.Fd()), pid); got != want {
			t.Errorf("pid %d: got %+v, want %+v", pid, got, want)
		}
	}
	keys := make(map[Key]bool)
	for _, pid := range []int{os.Getpid(), os.Getpid(), os.Getppid()} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Skip(err)
		}
		keys[keyOf(fd, int32(pid))] = true
		unix.Close(fd)
	}
	if len(keys) != 2 || keys[Key{}] {
		t.Errorf("two processes have the keys %v", keys)
	}
}

func TestStartTimeIsReadFromAnyName(t *testing.T) {
	rest := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for _, name := range []string{"(engine)", "(a b) c)", "()", "((R) 9 9 9"} {
		if got, err := parseStart([]byte("7 " + name + ")" + rest)); err != nil || got != 4711 {
			t.Errorf("%s: got %d, error %v", name, got, err)
		}
	}
	for _, stat := range []string{"", "7 (x) S 1 2", "7 (x" + rest, "7 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x"} {
		if got, err := parseStart([]byte(stat)); err == nil {
			t.Errorf("%q: got %d", stat, got)
		}
	}
}

func TestProcessOfAnEarlierAgentIsFoundOrGone(t *testing.T) {
	table := NewTable()
	self := table.Identify(int32(os.Getpid()))
	if !Identified(self) {
		t.Skip("this system shows no start times")
	}
	p, gone, err := table.Find(self)
	if err != nil || gone || p.ID != self {
		t.Fatalf("this process: gone %v, error %v", gone, err)
	}
	again, _, _ := table.Find(self)
	if again != p {
		t.Error("one process is watched twice")
	}
	again.Release()
	p.Release()
	successor := self
	successor.Start-- // as if the pid had been another's before
	if _, gone, err := table.Find(successor); err != nil || !gone {
		t.Errorf("a process whose pid is another's: gone %v, error %v", gone, err)
	}
	child := exec.Command("sleep", "3600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	id := table.Identify(int32(child.Process.Pid))
	_ = child.Process.Kill() // Wait says whether it ended
	_ = child.Wait()
	if _, gone, err := table.Find(id); id.Start != 0 && (err != nil || !gone) {
		t.Errorf("a dead process: gone %v, error %v", gone, err)
	}
	for _, id := range []blockmgr.Process{table.Identify(0), {PID: self.PID}} {
		if _, gone, err := table.Find(id); err == nil || gone {
			t.Errorf("%+v: gone %v, error %v: nobody can tell", id, gone, err)
		}
	}
	if n := len(table.byKey); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

// With hidepid, or in a service with ProtectProc, /proc shows no process of
// another user.
func TestProcessThatProcDoesNotShowIsNotGoneWhileItLives(t *testing.T) {
	table := NewTable()
	child := exec.Command("sleep", "3600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	id := table.Identify(int32(os.Getpid()))
	dead := blockmgr.Process{PID: int32(child.Process.Pid), Start: 1}
	table.proc = t.TempDir() // where nothing is to be seen
	if p, gone, err := table.Find(id); err == nil || gone || p != nil {
		t.Errorf("a living process: gone %v, error %v; want an error", gone, err)
	}
	_ = child.Process.Kill() // Wait says whether it ended
	_ = child.Wait()
	if _, gone, err := table.Find(dead); err != nil || !gone {
		t.Errorf("a dead process: gone %v, error %v", gone, err)
	}
	if n := len(table.byKey); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}
