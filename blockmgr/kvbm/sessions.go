package kvbm

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Begin begins a session of the pool, under an id that no earlier manager has used. The
// processes are those that copy from and to its slots, besides this one. If this one dies,
// the slots stay out of use until the others have exited. Pool.EndSession ends the session.
func (m *Manager) Begin(processes ...blockmgr.Process) (blockmgr.SessionID, error) {
	s := blockmgr.SessionID(kv.RandomID())
	if err := m.pool.BeginSession(s, processes...); err != nil {
		return 0, err
	}
	return s, nil
}

// forgetGone frees the slots of earlier managers' sessions whose processes have all exited.
// An earlier manager's own process has: it had locked the directory.
func (m *Manager) forgetGone() {
	for _, f := range m.core.Previous() {
		if !f.Foreign && !slices.ContainsFunc(f.Processes, mayRun) {
			m.core.Forget(f.Session)
		}
	}
}

// mayRun reports whether a process may still run. The pid may be another process's by now:
// that costs slots and no bytes.
func mayRun(p blockmgr.Process) bool {
	if p.PID <= 0 || p.Start == 0 {
		return true // the session did not name its process
	}
	return !errors.Is(unix.Kill(int(p.PID), 0), unix.ESRCH)
}
