package feed

import (
	"cmp"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
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

// joinLocked makes a worker a candidate, or takes in that its pool or card changed.
func (s *Set) joinLocked(f *feed) {
	if f.owner().Kind != kv.OwnerWorker {
		return
	}
	w := f.owner().Worker()
	if was, ok := f.model.absent.take(w); ok {
		f.engine = was.engine
	}
	s.forgetElsewhereLocked(w, f.model)
	if !sameEngine(f.engine, f.announcement.Card.Incarnation) {
		f.model.Forget(w)
	}
	// The scheduler asks what a worker is like when it sees it among the members.
	f.model.Described(w, &f.announcement)
	f.engine = cmp.Or(f.announcement.Card.Incarnation, f.engine)
	if err := f.model.Index().SetMember(w, f.announcement.Pool, true); err != nil {
		s.log.Error("worker cannot join", zap.Stringer("owner", f.owner()), zap.Error(err))
	}
}

// endLocked forgets a feed and everything its owner held.
func (s *Set) endLocked(f *feed, reason string) {
	delete(s.feeds, f.announcement.PublisherID)
	delete(s.byOwner, f.owner())
	s.dismissLocked(f)
	if f.owner().Kind == kv.OwnerWorker {
		w := f.owner().Worker()
		if err := f.model.Index().SetMember(w, 0, false); err != nil {
			s.log.Error("worker cannot leave", zap.Stringer("owner", f.owner()), zap.Error(err))
		}
		f.model.left(w, f.engine)
	}
	s.dropLocked(f)
	s.log.Info("owner leaves", zap.Stringer("owner", f.owner()),
		zap.String("publisher", source.PublisherName(f.announcement.PublisherID)), zap.String("reason", reason))
}

// dropLocked lets go of a feed that is in no table any more, and of its blocks.
func (s *Set) dropLocked(f *feed) {
	s.counters.add(&f.counters)
	// An answer that is still on its way finds nobody waiting.
	f.recovery = recovery{queries: f.queries}
	f.model.Index().RemoveOwner(f.owner())
	f.model.feeds--
}
