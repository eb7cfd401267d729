package agent

import (
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// engineGauges are how a worker rank stands, as its scheduler last said: blocks of
// its device pool, those that requests or copies hold, requests that took part in its
// last step and requests that wait.
type engineGauges struct {
	DeviceBlocks, DeviceUsed uint64
	Running, Waiting         uint64
}

// gaugeBox keeps the latest gauges of a session.
type gaugeBox struct{ latest atomic.Pointer[engineGauges] }

// take keeps what STATS says, if it says anything.
func (b *gaugeBox) take(m *proto.Stats) {
	if m.DeviceBlocksTotal == 0 {
		return
	}
	g := engineGauges{
		DeviceBlocks: m.DeviceBlocksTotal, DeviceUsed: m.DeviceBlocksUsed,
		Running: m.RunningRequests, Waiting: m.WaitingRequests,
	}
	if old := b.latest.Load(); old == nil || *old != g {
		b.latest.Store(&g)
	}
}

// gauges are what the scheduler's last STATS said; false before the first one, and
// for an engine that does not say. An engine whose gauges do not change may not
// repeat them. Any goroutine may ask.
func (s *session) gauges() (engineGauges, bool) {
	g := s.stand.latest.Load()
	if g == nil {
		return engineGauges{}, false
	}
	return *g, true
}

// takeStats counts what a scheduler reports and keeps how it stands, that of reports
// that come too soon to count too.
func (s *session) takeStats(m *proto.Stats) error {
	if err := s.reports.take(m, time.Now()); err != nil {
		return err
	}
	s.stand.take(m)
	return nil
}
