package feed

import (
	"cmp"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/source"
)

// ModelKey identifies a model. A block of one key is never a hit for another key.
type ModelKey struct {
	// Name is the model's name in announcements, registrations and requests.
	Name string
	// BlockSize is in tokens.
	BlockSize uint32
}

// String returns the key as errors and logs show it.
func (k ModelKey) String() string { return fmt.Sprintf("%q with block size %d", k.Name, k.BlockSize) }

func keyOf(a *kvevent.Announcement) ModelKey { return ModelKey{a.Model, a.BlockSize} }

// MaxModels bounds the models of a router. Pools and registrations open new models only
// up to half of it, so that workers of agents always find room.
const MaxModels = 256

// ErrTooManyModels is the error of Models.Open beyond its limit.
var ErrTooManyModels = fmt.Errorf("there are %d models already", MaxModels)

// Models opens and retires the models that feeds belong to.
type Models interface {
	// Open makes the model of a key. It fails when there are most models already.
	Open(key ModelKey, most int) (Model, error)
	// Retire forgets a model without feeds, workers and requests.
	Retire(m Model) error
	// Changed is called when the number of workers of a model has changed.
	Changed()
}

// Model is what a Set needs of one model. The Set calls the methods with its lock held,
// except ApplyLoad.
type Model interface {
	// Index holds the blocks of the model's owners.
	Index() *index.Index
	// SetView publishes the view for decisions.
	SetView(v View)
	// SetCard sets a worker's card, before the worker becomes a member of the index.
	SetCard(w kv.Worker, a *kvevent.Announcement)
	// RemoveCard removes a worker's card. Requests and measures of the worker stay.
	RemoveCard(w kv.Worker)
	// Forget drops the requests and measures of a worker.
	Forget(w kv.Worker)
	// ApplyLoad applies a load report of one of the model's workers or pools.
	ApplyLoad(l *kvevent.LoadReport)
	// Idle reports whether the model has neither workers nor requests.
	Idle() bool
}

// modelFeeds is the state that a Set keeps of one model.
type modelFeeds struct {
	Model
	key ModelKey
	// feeds counts the feeds of the model, restored ones included.
	feeds int
	// kept is true for a model that Keep opened. Its workers may have no feed, so the
	// model is never retired.
	kept  bool
	tally tally
	// absent are workers that left lately and whose engine may still run.
	absent absentWorkers
	// view is the last published one.
	view View
}

// newFeed returns the feed of a publisher of a model.
func newFeed(a *kvevent.Announcement, m *modelFeeds) *feed {
	m.feeds++
	return &feed{announcement: *a, blocks: m.Index(), model: m}
}

// openModel returns the model that an announcement names, and opens it if necessary.
func (s *Set) openModel(a *kvevent.Announcement) (*modelFeeds, error) {
	most := MaxModels
	if a.Owner.Kind != kv.OwnerWorker || source.IsRegistered(a) {
		most = MaxModels / 2
	}
	return s.open(keyOf(a), most)
}

func (s *Set) open(key ModelKey, most int) (*modelFeeds, error) {
	if m := s.models[key]; m != nil {
		return m, nil
	}
	followed, err := s.directory.Open(key, most)
	if err != nil {
		return nil, err
	}
	m := &modelFeeds{Model: followed, key: key, tally: newTally(), absent: newAbsentWorkers(s.keepAbsent)}
	s.models[key] = m
	s.refreshModelLocked(m)
	return m, nil
}

// Keep opens a model that is never retired.
func (s *Set) Keep(key ModelKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.open(key, MaxModels)
	if err != nil {
		return err
	}
	m.kept = true
	s.refreshModelLocked(m)
	return nil
}

// retireModelsLocked forgets workers that have been absent for too long, and retires
// the models that nothing needs any more.
func (s *Set) retireModelsLocked(now time.Time) {
	for _, m := range s.models {
		for _, w := range m.absent.expire(now) {
			m.Forget(w)
		}
		if m.kept || m.feeds > 0 || m.absent.len() > 0 || !m.Idle() {
			continue
		}
		delete(s.models, m.key)
		if err := s.directory.Retire(m.Model); err != nil {
			s.log.Warn("model without workers is not closed", zap.String("model", m.key.Name), zap.Error(err))
		}
	}
}

// applyLoad passes a load report to the model of its owner. Reports of unknown owners
// are only kept.
func (s *Set) applyLoad(l *kvevent.LoadReport) {
	s.mu.Lock()
	f := s.byOwner[l.Owner]
	s.mu.Unlock()
	if f != nil {
		f.model.ApplyLoad(l)
	}
}

// forgetElsewhereLocked forgets a worker that left another model than m: its engine
// serves m now.
func (s *Set) forgetElsewhereLocked(w kv.Worker, m *modelFeeds) {
	for _, o := range s.models {
		if _, ok := o.absent.take(w); ok && o != m {
			o.Forget(w)
		}
	}
}

// leave removes a worker and keeps it among the absent ones, if there is room.
func (m *modelFeeds) leave(w kv.Worker, engine uint64) {
	m.RemoveCard(w)
	if !m.absent.add(w, engine) {
		m.Forget(w)
	}
}

// withoutBlocks removes what an announcement says of blocks, for routers without events. It
// returns false for a pool, which has nothing else to say.
func withoutBlocks(a *kvevent.Announcement) (ok bool) {
	if a.Owner.Kind != kv.OwnerWorker {
		return false
	}
	a.LastEventID, a.Digest, a.Blocks, a.Pool, a.Card.Silent = 0, 0, 0, 0, true
	if a.Health != kvevent.HealthGone {
		a.Health = kvevent.HealthExact
	}
	return true
}

// joinLocked makes a worker a candidate, or applies its new pool or card.
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
	// The scheduler asks for the card as soon as the worker is a member.
	f.model.SetCard(w, &f.announcement)
	f.engine = cmp.Or(f.announcement.Card.Incarnation, f.engine)
	if err := f.model.Index().SetMember(w, f.announcement.Pool, true); err != nil {
		s.log.Error("worker cannot join", zap.Stringer("owner", f.owner()), zap.Error(err))
	}
}

// endLocked forgets a feed and everything that its owner held.
func (s *Set) endLocked(f *feed, reason string) {
	delete(s.feeds, f.announcement.PublisherID)
	delete(s.byOwner, f.owner())
	s.uncountLocked(f)
	if f.owner().Kind == kv.OwnerWorker {
		w := f.owner().Worker()
		if err := f.model.Index().SetMember(w, 0, false); err != nil {
			s.log.Error("worker cannot leave", zap.Stringer("owner", f.owner()), zap.Error(err))
		}
		f.model.leave(w, f.engine)
	}
	s.dropLocked(f)
	s.log.Info("owner leaves", zap.Stringer("owner", f.owner()),
		zap.String("publisher", source.PublisherName(f.announcement.PublisherID)), zap.String("reason", reason))
}

// dropLocked forgets the blocks of a feed that is in no table any more.
func (s *Set) dropLocked(f *feed) {
	metric.Add(&s.counters.Counters, &f.counters)
	// An answer in flight finds no recovery.
	f.recovery = recovery{queries: f.queries}
	f.model.Index().RemoveOwner(f.owner())
	f.model.feeds--
}

// An engine outlives its publisher, because its agent may restart. A worker that leaves
// is no candidate. Its requests and measures stay until the worker is back, or for as
// long as the account keeps a silent request.

// maxAbsent bounds the absent workers of a model.
const maxAbsent = 4096

// absentWorkers are workers that left and whose engine may still run.
type absentWorkers struct {
	// keep is how long a worker may be absent.
	keep time.Duration
	left map[kv.Worker]absence
}

// absence describes a worker that left.
type absence struct {
	// engine is the incarnation of its engine, 0 when unknown.
	engine uint64
	// since is zero until the next expire.
	since time.Time
}

func newAbsentWorkers(keep time.Duration) absentWorkers {
	return absentWorkers{keep: keep, left: make(map[kv.Worker]absence)}
}

func (a *absentWorkers) len() int { return len(a.left) }

// add notes that a worker left; false when there are too many.
func (a *absentWorkers) add(w kv.Worker, engine uint64) bool {
	if len(a.left) >= maxAbsent {
		return false
	}
	a.left[w] = absence{engine: engine}
	return true
}

// take returns the absence of a worker and forgets it.
func (a *absentWorkers) take(w kv.Worker) (absence, bool) {
	was, ok := a.left[w]
	delete(a.left, w)
	return was, ok
}

// expire returns the workers that have been absent for too long, and forgets them.
func (a *absentWorkers) expire(now time.Time) (over []kv.Worker) {
	for w, was := range a.left {
		switch {
		case was.since.IsZero():
			was.since = now
			a.left[w] = was
		case now.Sub(was.since) > a.keep:
			over = append(over, w)
			delete(a.left, w)
		}
	}
	return over
}

// sameEngine reports whether two incarnations may be the same engine. An unknown
// incarnation, 0, may be any. Callers free the requests of a dead engine; the requests
// of a living one must not be lost.
func sameEngine(a, b uint64) bool { return a == 0 || b == 0 || a == b }
