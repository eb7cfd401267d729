package router

import (
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// silence makes an announcement one of a worker that publishes no events; ok is false
// for a pool, of which nothing is left then.
func silence(a *kvevent.Announcement) (ok bool) {
	if a.Owner.Kind != kv.OwnerWorker {
		return false
	}
	a.LastEventID, a.Digest, a.Blocks, a.Pool, a.Card.Silent = 0, 0, 0, 0, true
	if a.Health != kvevent.HealthGone {
		a.Health = kvevent.HealthExact
	}
	return true
}

// joinLocked makes a worker a candidate.
func (s *feedSet) joinLocked(f *feedState) {
	if f.owner().Kind != kv.OwnerWorker {
		return
	}
	// The scheduler asks what a worker is like when it sees it among the members.
	if s.joined != nil {
		s.joined(f.owner().Worker(), &f.announcement)
	}
	if err := s.index.SetMember(f.owner().Worker(), f.announcement.Pool, true); err != nil {
		s.log.Error("worker cannot join", zap.Stringer("owner", f.owner()), zap.Error(err))
	}
}

// endLocked forgets a feed and everything its owner held.
func (s *feedSet) endLocked(f *feedState, reason string) {
	delete(s.feeds, f.announcement.PublisherID)
	delete(s.byOwner, f.owner())
	s.dismissLocked(f)
	s.counters.add(&f.counters)
	// An answer that is still on its way finds nobody waiting.
	f.recovery = recovery{queries: f.queries}
	if f.owner().Kind == kv.OwnerWorker {
		w := f.owner().Worker()
		if err := s.index.SetMember(w, 0, false); err != nil {
			s.log.Error("worker cannot leave", zap.Stringer("owner", f.owner()), zap.Error(err))
		}
		s.scheduler.RemoveWorker(w)
		if s.left != nil {
			s.left(w)
		}
	}
	s.index.RemoveOwner(f.owner())
	s.log.Info("owner leaves", zap.Stringer("owner", f.owner()),
		zap.String("publisher", publisherName(f.announcement.PublisherID)), zap.String("reason", reason))
}
