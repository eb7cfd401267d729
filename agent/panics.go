package agent

import (
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// guard calls do for a session. A panic of do ends this session and not the agent: the
// panic is counted, logged with its stack and returned as an error, and the scheduler's
// connection closes. The session then ends as one without BYE does, so that its granted
// slots stay in quarantine until its processes have exited.
func (s *session) guard(do func() error) error {
	return s.count.guard(s.log, s.conn, do)
}

// guard calls do, whose panic is counted, logged with its stack and returned as an error.
// It also closes conn.
func (c *sessionCounters) guard(log *zap.Logger, conn interface{ Close() error }, do func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err = fmt.Errorf("panic: %v", v)
		c.panics.Add(1)
		log.Error("a session panicked: its connection is closed", zap.Error(err), zap.ByteString("stack", debug.Stack()))
		conn.Close() // whoever reads it sees the end
	}()
	return do()
}

// guarded is guard for what returns no error.
func (s *session) guarded(do func()) {
	_ = s.guard(func() error { do(); return nil }) // the error is in the log
}
