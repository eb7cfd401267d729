package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// sharedMemory is where Linux keeps files in memory.
const sharedMemory = "/dev/shm"

// Dirs are the directories of a scenario.
type Dirs struct {
	Work string // sockets, disk tiers and logs
	Host string // host tiers
	Logs string // in Work
	// lock holds Host while the scenario lives; nil when Host is in Work.
	lock *os.File
}

// MakeDirs makes the directories of a scenario. Work is in parent, or in the temporary
// directory if parent is empty. Host is in hostParent. If hostParent is empty, Host is in shared
// memory if need bytes are free there, else in Work. MakeDirs removes the files that a killed
// scenario of this name left in shared memory.
func MakeDirs(name, parent, hostParent string, need uint64) (d *Dirs, err error) {
	d = new(Dirs)
	if d.Work, err = os.MkdirTemp(parent, name+"-"); err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	d.Logs = filepath.Join(d.Work, "logs")
	switch {
	case hostParent != "":
		if d.Host, d.lock, err = claim(hostParent, name); err != nil {
			return nil, errors.Join(fmt.Errorf("--host-dir: %w", err), os.RemoveAll(d.Work))
		}
	default:
		sweep(sharedMemory, name)
		if freeBytes(sharedMemory) >= need {
			d.Host, d.lock, _ = claim(sharedMemory, name) // else in Work
		}
	}
	if d.lock == nil {
		d.Host = filepath.Join(d.Work, "host")
	}
	if err := errors.Join(os.MkdirAll(d.Logs, 0o700), os.MkdirAll(d.Host, 0o700)); err != nil {
		return nil, errors.Join(err, d.Remove(false))
	}
	return d, nil
}

// InMemory reports whether Host is outside Work, in memory as a rule.
func (d *Dirs) InMemory() bool { return d.lock != nil }

// hostPrefix begins the names of host directories of the scenario name.
func hostPrefix(name string) string { return name + "-host-" }

// claim makes a directory for the scenario name in root and locks it. It returns the path and the
// file that holds the lock until it is closed. The directory gets its name after it is locked, so
// that no other scenario's sweep removes it.
func claim(root, name string) (string, *os.File, error) {
	hidden, err := os.MkdirTemp(root, ".blockyard-")
	if err != nil {
		return "", nil, err
	}
	lock, err := os.Open(hidden)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(hidden))
	}
	path := filepath.Join(root, hostPrefix(name)+strconv.Itoa(os.Getpid()))
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close(), os.Remove(hidden))
	}
	return path, lock, nil
}

// sweep removes the host directories that killed scenarios left in root. It skips the
// directories of other users and of running scenarios.
func sweep(root, name string) {
	found, err := filepath.Glob(filepath.Join(root, hostPrefix(name)+"*"))
	if err != nil {
		return
	}
	for _, dir := range found {
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		// A lock means that the scenario still runs.
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}

// freeBytes returns the free bytes in dir, 0 if unknown.
func freeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}

// Sub makes the directories of one part of a scenario, name in each of d's. The
// lock stays d's.
func (d *Dirs) Sub(name string) (*Dirs, error) {
	s := &Dirs{Work: filepath.Join(d.Work, name), Host: filepath.Join(d.Host, name), Logs: filepath.Join(d.Logs, name)}
	return s, errors.Join(os.MkdirAll(s.Work, 0o700), os.MkdirAll(s.Host, 0o700), os.MkdirAll(s.Logs, 0o700))
}

// HostFiles returns the paths of the files and sockets below Host, where tiers leave nothing
// after an orderly end.
func (d *Dirs) HostFiles() (files []string) {
	_ = filepath.WalkDir(d.Host, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return nil
	})
	return files
}

// Remove removes the directories of the scenario. With keepLogs it leaves the logs.
func (d *Dirs) Remove(keepLogs bool) error {
	err := os.RemoveAll(d.Host)
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	if !keepLogs {
		return errors.Join(err, os.RemoveAll(d.Work), os.RemoveAll(d.Logs))
	}
	entries, readErr := os.ReadDir(d.Work)
	err = errors.Join(err, readErr)
	for _, e := range entries {
		if path := filepath.Join(d.Work, e.Name()); path != d.Logs {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}
