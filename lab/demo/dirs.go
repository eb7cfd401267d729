package demo

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

// dirs are the directories of a whole demo; remove takes them away.
type dirs struct {
	work string // sockets, disk tiers and logs
	host string // host tiers, in memory where possible
	logs string
	// lock holds host while it is in shared memory; nil otherwise.
	lock *os.File
}

// runDirs are those of one run.
type runDirs struct{ work, host, logs string }

// makeDirs makes them under parent (empty: the temporary directory), with the
// host tiers in shared memory if need bytes are free there.
func makeDirs(parent string, need uint64) (*dirs, error) {
	work, err := os.MkdirTemp(parent, "blockyard-demo-")
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	d := &dirs{work: work, logs: filepath.Join(work, "logs"), host: filepath.Join(work, "host")}
	sweepShared(sharedMemory)
	if freeBytes(sharedMemory) >= need {
		if shared, lock, err := claimShared(sharedMemory); err == nil {
			d.host, d.lock = shared, lock
		}
	}
	for _, dir := range []string{d.logs, d.host} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, errors.Join(err, d.remove(false))
		}
	}
	return d, nil
}

// sharedPrefix begins the name of a demo's directory in shared memory.
const sharedPrefix = "blockyard-demo-"

// claimShared makes this process's directory in root and locks it for as long as
// the returned file is open: its lock tells it from one that a killed demo left.
// It gets its name only when it is locked, so that no other demo sweeps it.
func claimShared(root string) (string, *os.File, error) {
	hidden, err := os.MkdirTemp(root, ".blockyard-")
	if err != nil {
		return "", nil, err
	}
	lock, err := os.Open(hidden)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(hidden))
	}
	path := filepath.Join(root, sharedPrefix+strconv.Itoa(os.Getpid()))
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return "", nil, errors.Join(err, lock.Close(), os.Remove(hidden))
	}
	return path, lock, nil
}

// sweepShared removes the directories that killed demos left in root. What
// cannot be removed is somebody else's business.
func sweepShared(root string) {
	found, err := filepath.Glob(filepath.Join(root, sharedPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range found {
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}

// freeBytes is what is free in dir; 0 if that is not known.
func freeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}

// forRun makes the directories of one run.
func (d *dirs) forRun(name string) (runDirs, error) {
	r := runDirs{
		work: filepath.Join(d.work, name),
		host: filepath.Join(d.host, name),
		logs: filepath.Join(d.logs, name),
	}
	for _, dir := range []string{r.work, r.host, r.logs} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return r, err
		}
	}
	return r, nil
}

// hostFiles lists the regular files and sockets that a run left in its host
// directory.
func (r runDirs) hostFiles() []string {
	var files []string
	filepath.WalkDir(r.host, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return nil
	})
	return files
}

// remove takes a run's directories away, but not its logs.
func (r runDirs) remove() error {
	return errors.Join(os.RemoveAll(r.work), os.RemoveAll(r.host))
}

// remove takes everything away; with keepLogs, all but the logs.
func (d *dirs) remove(keepLogs bool) error {
	err := os.RemoveAll(d.host)
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	if !keepLogs {
		return errors.Join(err, os.RemoveAll(d.work))
	}
	return err
}
