package events

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// maxCheckpoints bounds the files of ranks without a session.
const maxCheckpoints = 256

// checkpoints are the files that tell the next agent which blocks each rank's engine has
// cached. mu is a leaf. It is held while the directory is read, which delays only sessions that
// begin or end.
type checkpoints struct {
	dir string // empty: none
	log *zap.Logger
	// failed counts the ranks without a file because the directory cannot be used.
	failed atomic.Uint64
	warned sync.Once // has warned that ranks have no files
	slow   sync.Once // has warned that the directory is on a disk

	mu sync.Mutex
	// latest has the newest session of each file, by path: sessions that use the file, and ended
	// ones whose engines may live.
	latest  map[string]*checkpoint
	stopped bool // all files stay for the next agent
}

// checkpoint is the file of one rank's session.
type checkpoint struct {
	set  *checkpoints
	path string
	// set.mu guards the fields below.
	ended    bool          // the rank has stopped writing the file
	unwanted bool          // the engine is gone for good
	waitOver chan struct{} // closed when removeAfter need not wait for the engine
}

func newCheckpoints(c *Config, log *zap.Logger) *checkpoints {
	s := &checkpoints{log: log, latest: make(map[string]*checkpoint)}
	if !c.NoCheckpoints {
		s.dir = c.CheckpointDir
	}
	return s
}

// begin returns the checkpoint file for a rank whose session begins. It prunes the oldest files of
// ranks without a session. It returns nil when checkpoints are off or their directory cannot be
// made. c.waitOver ends the wait for an engine's exit, after which its file would be removed.
func (s *checkpoints) begin(w kv.Worker) *checkpoint {
	if s.dir == "" {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		s.failed.Add(1)
		s.warned.Do(func() {
			s.log.Warn("checkpoints cannot be written: the next agent does not know what engines have cached", zap.String("dir", s.dir), zap.Error(err))
		})
		return nil
	}
	var at unix.Statfs_t
	if err := unix.Statfs(s.dir, &at); err == nil && at.Type != unix.TMPFS_MAGIC {
		s.slow.Do(func() {
			s.log.Warn("checkpoints are on a disk, and each rank writes a file twice a second: put the socket on a tmpfs, or turn checkpoints off",
				zap.String("dir", s.dir))
		})
	}
	c := &checkpoint{set: s, waitOver: make(chan struct{}), path: filepath.Join(s.dir, fmt.Sprintf("%016x-%d", uint64(w.ID), w.Rank))}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped { // the next agent needs every file: none is removed
		close(c.waitOver)
		return c
	}
	if old := s.latest[c.path]; old != nil { // of the rank's earlier session: the file is ours now
		close(old.waitOver)
	}
	s.latest[c.path] = c
	s.pruneLocked(maxCheckpoints)
	return c
}

// pruneLocked removes the oldest checkpoint files that no rank's session uses, until at most keep
// of them are left. Errors are ignored: the next rank prunes again.
func (s *checkpoints) pruneLocked(keep int) {
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) <= keep {
		return
	}
	type aged struct {
		path string
		at   int64
	}
	files := make([]aged, 0, len(entries))
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		if c := s.latest[path]; c != nil && !c.ended { // in use
			continue
		}
		if info, err := e.Info(); err == nil {
			files = append(files, aged{path, info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(files, func(a, b aged) int { return cmp.Compare(a.at, b.at) })
	for _, f := range files[:max(0, len(files)-keep)] {
		_ = os.Remove(f.path) // the next rank tries again
	}
}

// stop leaves all files for the next agent, and ends all waits for engines to exit.
func (s *checkpoints) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	for _, c := range s.latest {
		close(c.waitOver)
	}
	clear(s.latest)
}

// file returns the path, empty for none.
func (c *checkpoint) file() string {
	if c == nil {
		return ""
	}
	return c.path
}

// end says that the rank has stopped writing its file. The file is removed if the engine is gone
// for good. When more than maxCheckpoints ranks have ended, nobody waits for this engine any
// longer: pruning removes the file. A nil c does nothing.
func (c *checkpoint) end() {
	if c == nil {
		return
	}
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	c.ended = true
	c.removeUnusedLocked()
	ended := 0
	for _, other := range s.latest {
		if other.ended {
			ended++
		}
	}
	if s.latest[c.path] == c && ended > maxCheckpoints { // still there, and too many
		close(c.waitOver)
		delete(s.latest, c.path)
	}
}

// remove says that the engine is gone for good. It removes the file now or when the rank ends.
// The file stays when another session of the rank has begun.
func (c *checkpoint) remove() {
	if c == nil {
		return
	}
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.unwanted = true
	c.removeUnusedLocked()
}

// removeUnusedLocked removes the file if the rank has ended and the engine is gone.
func (c *checkpoint) removeUnusedLocked() {
	s := c.set
	if !c.ended || !c.unwanted || s.latest[c.path] != c { // the last: a later session has the file
		return
	}
	close(c.waitOver)
	delete(s.latest, c.path)
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("a checkpoint cannot be removed", zap.String("file", c.path), zap.Error(err))
	}
}

// removeAfter calls remove when every channel of exited is closed. It returns earlier when
// another session of the rank begins or the agent stops.
func (c *checkpoint) removeAfter(exited []<-chan struct{}) {
	if c == nil {
		return
	}
	for _, e := range exited {
		select {
		case <-e:
		case <-c.waitOver:
			return
		}
	}
	c.remove()
}
