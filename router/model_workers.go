package router

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Described implements FollowedModel.
func (m *Model) Described(w kv.Worker, a *kvevent.Announcement) {
	// A new worker changes the list of members, which the scheduler notices itself.
	if m.cards.set(w, &a.Card) {
		m.scheduler.WorkersChanged()
	}
	if m.estimate != nil {
		m.estimate.SetWorker(w, a.Pool, a.Model)
	}
}

// Left implements FollowedModel.
func (m *Model) Left(w kv.Worker) { m.cards.remove(w) }

// Forget implements FollowedModel.
func (m *Model) Forget(w kv.Worker) {
	m.scheduler.RemoveWorker(w)
	m.decide.ForgetWorker(w)
	if m.estimate != nil {
		m.estimate.RemoveWorker(w)
	}
}

// HeardLoad implements FollowedModel.
func (m *Model) HeardLoad(l *kvevent.LoadReport) {
	if l.Owner.Kind == kv.OwnerWorker {
		m.cards.reported(l.Owner.Worker(), l.Worker.DeviceBlocksTotal)
		m.scheduler.ReportUsedBlocks(l.Owner.Worker(), l.Worker.DeviceBlocksUsed)
		// An engine that does not tell its blocks does not tell its requests.
		if l.Worker.DeviceBlocksTotal > 0 {
			m.scheduler.ReportRequests(l.Owner.Worker(), l.Worker.Running, l.Worker.Waiting)
		}
	}
	if m.estimate != nil {
		m.estimate.Report(l)
	}
}
