package process

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// Process watches an engine's process through a pidfd, which never comes to mean another
// process. All connections of a process share one watch. Each Watch, Find and Unwatched needs
// one Release.
type Process struct {
	Key    Key
	ID     blockmgr.Process // for the next agent
	table  *Table
	refs   int             // guarded by table.mu
	f      *os.File        // the pidfd; nil: the process cannot be watched
	raw    syscall.RawConn // of f
	exited chan struct{}   // closed when the process has exited
	wg     sync.WaitGroup
}

// Key identifies a living process. Processes that nothing tells apart (out of sight in another
// pid namespace, on an old kernel) have the zero key.
type Key struct {
	inode uint64 // of the pidfd, where every process has its own (Linux 6.9)
	pid   int32  // on older kernels
}

// Table has the watches of all processes that are connected or waited for: one file descriptor
// and one goroutine each. mu is a leaf.
type Table struct {
	// proc is the mount point of procfs.
	proc string

	mu    sync.Mutex
	byKey map[Key]*Process
}

// NewTable returns a table without watches.
func NewTable() *Table {
	return &Table{proc: "/proc", byKey: make(map[Key]*Process)}
}

// Watch watches the peer of c, whose pid is pid. The process is never nil.
//
// With an error (an old kernel, a peer in another pid namespace) the process cannot be watched
// and never counts as gone: its granted slots stay in quarantine, and a gauge shows them.
func (t *Table) Watch(c *net.UnixConn, pid int32) (*Process, error) {
	fd, err := peerPidfd(c, pid)
	var p *Process
	if err == nil {
		p, err = t.adopt(fd, pid)
	}
	if err != nil {
		return t.Unwatched(t.Identify(pid)), fmt.Errorf("watch %s: %w", Name(pid), err)
	}
	return p, nil
}

// adopt returns the watch of the process of pidfd fd, which has pid: the watch that the table
// has, with one more reference, or a new one. adopt owns fd, which the watch closes at its end.
func (t *Table) adopt(fd int, pid int32) (*Process, error) {
	key := keyOf(fd, pid)
	t.mu.Lock()
	defer t.mu.Unlock()
	// A pid names its process until that process is reaped. alive asks the kernel, so that the pid
	// cannot name another process.
	if p := t.byKey[key]; p != nil && p.alive() {
		unix.Close(fd)
		p.refs++
		return p, nil
	}
	p, err := newProcess(t, key, fd)
	if err != nil {
		return nil, err
	}
	if p.ID = t.Identify(pid); !p.alive() {
		p.ID.Start = 0 // the start time may be that of another process with the pid
	}
	if key != (Key{}) {
		t.byKey[key] = p
	}
	return p, nil
}

// Unwatched stands for a process that cannot be watched. It never counts as gone.
func (t *Table) Unwatched(id blockmgr.Process) *Process {
	key := Key{pid: id.PID}
	if id.PID == unseenPID { // in another pid namespace: nothing tells the process from others
		key = Key{}
	}
	return &Process{Key: key, ID: id, table: t, refs: 1, exited: make(chan struct{})}
}

// newProcess starts a watch of the process of pidfd fd. It closes fd at the end of the watch.
func newProcess(t *Table, key Key, fd int) (*Process, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	p := &Process{Key: key, table: t, refs: 1, f: f, raw: raw, exited: make(chan struct{})}
	p.wg.Go(func() {
		// The runtime's poller waits, which holds no thread. An error says that the file was
		// closed.
		if raw.Read(pidfdReadable) == nil {
			close(p.exited)
		}
	})
	return p, nil
}

// keyOf returns the key under which the table shares the watch of a pidfd's process: the
// pidfd's inode where every process has its own (Linux 6.9), else the pid. The key is zero when
// the pid is unknown too.
func keyOf(fd int, pid int32) Key {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC && unix.Fstat(fd, &st) == nil {
		return Key{inode: st.Ino}
	}
	return Key{pid: max(pid, 0)}
}

// peerPidfd opens a pidfd of the process that connected c. From Linux 6.5 on the kernel has a
// record of that process. Before, peerPidfd opens pid: as c is still open, another process can
// hardly have the pid.
func peerPidfd(c *net.UnixConn, pid int32) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var sockErr error
	if err := raw.Control(func(s uintptr) {
		fd, sockErr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, err
	}
	if sockErr == nil {
		return fd, nil
	}
	if pid <= 0 {
		return -1, fmt.Errorf("the peer is not in a pid namespace of this agent: %w", sockErr)
	}
	return unix.PidfdOpen(int(pid), 0)
}

// pidfdReadable reports whether a pidfd's process has exited.
func pidfdReadable(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0
}

// alive asks the kernel whether a watched process is running.
func (p *Process) alive() bool {
	alive := false
	err := p.raw.Control(func(fd uintptr) { alive = !pidfdReadable(fd) })
	return err == nil && alive
}

// Exited returns a channel that is closed when the process is known to have exited.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Gone reports whether the process is known to have exited.
func (p *Process) Gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Release ends one use of the watch. The last one ends the watch.
func (p *Process) Release() {
	if p.forget() && p.f != nil {
		p.f.Close()
		p.wg.Wait()
	}
}

// forget drops a reference to the watch and reports whether it was the last one. The table then
// shares the watch no more.
func (p *Process) forget() bool {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	p.refs--
	if p.refs > 0 {
		return false
	}
	if t.byKey[p.Key] == p {
		delete(t.byKey, p.Key)
	}
	return true
}

// ReleaseAll releases each of procs once.
func ReleaseAll(procs []*Process) {
	for _, p := range procs {
		p.Release()
	}
}

// AllExited waits until all of procs have exited and then returns true. It returns false when
// stopping is closed first.
func AllExited(procs []*Process, stopping <-chan struct{}) bool {
	for _, p := range procs {
		select {
		case <-p.exited:
		case <-stopping:
			return false
		}
	}
	return true
}
