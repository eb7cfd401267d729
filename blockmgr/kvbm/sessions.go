package kvbm

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Begin begins a session of the pool, under an id that no session of an earlier
// manager has. The processes are those that copy from and to its slots besides
// this one; should this one die, the slots stay out of use until they are gone.
// The session ends with Pool.EndSession.
func (m *Manager) Begin(processes ...blockmgr.Process) (blockmgr.SessionID, error) {
	s := blockmgr.SessionID(kv.RandomID())
	if err := m.pool.BeginSession(s, processes...); err != nil {
		return 0, err
	}
	return s, nil
}

// forgetGone frees what sessions of earlier managers hold whose processes are all
// gone. The earlier manager's own process is: the directory was locked by it.
func (m *Manager) forgetGone() {
	for _, f := range m.core.Previous() {
		if !f.Foreign && !slices.ContainsFunc(f.Processes, mayRun) {
			m.core.Forget(f.Session)
		}
	}
}

// mayRun reports whether a process may still run. A pid that is taken may be
// another process's by now, which costs slots and no bytes.
func mayRun(p blockmgr.Process) bool {
	if p.PID <= 0 || p.Start == 0 {
		return true // which process it is was never known
	}
	return !errors.Is(unix.Kill(int(p.PID), 0), unix.ESRCH)
}
