package consolidator

import (
	"time"

	"go.uber.org/zap"
)

// logPause is the least time between two lines of a limitedLog.
const logPause = time.Second

// limitedLog writes at most one warning a second and says how many it kept
// back. It belongs to one goroutine.
type limitedLog struct {
	log        *zap.Logger
	last       time.Time
	suppressed int
}

func newLimitedLog(log *zap.Logger) *limitedLog { return &limitedLog{log: log} }

func (l *limitedLog) warn(msg string, fields ...zap.Field) {
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < logPause {
		l.suppressed++
		return
	}
	l.log.Warn(msg, append(fields, zap.Int("suppressed", l.suppressed))...)
	l.last, l.suppressed = now, 0
}
