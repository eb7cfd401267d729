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
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source"
)

// ModelKey identifies a model. A block of one key is never a hit for another key.
type ModelKey struct {
	// Name is the model's name in announcements, registrations and requests.
	Name string
	// BlockSize is in tokens.
	BlockSize uint32
}

// String formats the key for errors and logs.
func (k ModelKey) String() string { return fmt.Sprintf("%q with block size %d", k.Name, k.BlockSize) }

func keyOf(a *kvevent.Announcement) ModelKey { return ModelKey{a.Model, a.BlockSize} }

// MaxModels bounds the models of a router. Pools and registrations may open only half of
// them, so that the workers of agents find room.
const MaxModels = 256

// ErrTooManyModels is the error of Models.Open beyond its limit.
var ErrTooManyModels = fmt.Errorf("there are %d models already", MaxModels)

// Models opens and retires the models that feeds belong to.
type Models interface {
	// Open opens the model of a key. It fails when limit models are open.
	Open(key ModelKey, limit int) (Model, error)
	// Retire forgets a model without feeds, workers and requests.
	Retire(m Model) error
	// Changed is called when the number of workers of a model has changed.
	Changed()
}

// Model is one model as a Set uses it. The Set calls the methods with its lock held, except
// ApplyLoad.
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
	// History remembers the blocks that left Index; nil for none.
	History() *miss.History
	// Idle reports whether the model has neither workers nor requests.
	Idle() bool
}

// modelFeeds is a Set's state of one model.
type modelFeeds struct {
	Model
	key ModelKey
	// feeds counts the feeds of the model, restored ones included.
	feeds int
	tally tally
	// absent are the workers that left lately and whose engine may still run.
	absent absentWorkers
	// view is the last published one.
	view View
}

// newFeed returns a feed of a publisher in a model.
func newFeed(a *kvevent.Announcement, m *modelFeeds) *feed {
	m.feeds++
	return &feed{announcement: *a, index: m.Index(), history: m.History(), model: m}
}

// openModel returns the model that an announcement names, and opens it if necessary. The caller
// holds s.mu.
func (s *Set) openModel(a *kvevent.Announcement) (*modelFeeds, error) {
	limit := MaxModels
	if a.Owner.Kind != kv.OwnerWorker || source.IsRegistered(a) {
		limit = MaxModels / 2 // the other half is for workers of agents
	}
	return s.open(keyOf(a), limit)
}

// open returns the Set's state of the model with that name and block size. It opens a new model if
// fewer than limit models are open. The caller holds s.mu.
func (s *Set) open(key ModelKey, limit int) (*modelFeeds, error) {
	if m := s.models[key]; m != nil {
		return m, nil
	}
	opened, err := s.directory.Open(key, limit)
	if err != nil {
		return nil, err
	}
	m := &modelFeeds{Model: opened, key: key, tally: newTally(), absent: newAbsentWorkers(s.keepAbsent)}
	s.models[key] = m
	s.refreshModelLocked(m)
	return m, nil
}

// retireModelsLocked retires the models that have no feeds, no requests, and no absent workers:
// workers that left lately and whose engine may still run. It first forgets workers that were
// absent for too long. Tick calls it.
func (s *Set) retireModelsLocked(now time.Time) {
	for _, m := range s.models {
		for _, w := range m.absent.expire(now) {
			m.Forget(w)
		}
		if m.feeds > 0 || m.absent.len() > 0 || !m.Idle() {
			continue
		}
		delete(s.models, m.key)
		if err := s.directory.Retire(m.Model); err != nil {
			s.log.Warn("retiring a model without workers failed", zap.String("model", m.key.Name), zap.Error(err))
		}
	}
}

// applyLoad passes a load report to the model of the worker or pool that it is of. A report of an
// owner without a feed is ignored.
func (s *Set) applyLoad(l *kvevent.LoadReport) {
	s.mu.Lock()
	f := s.byOwner[l.Owner]
	s.mu.Unlock()
	if f != nil {
		f.model.ApplyLoad(l)
	}
}

// forgetElsewhereLocked forgets an absent worker in all models but m: its engine serves m
// now.
func (s *Set) forgetElsewhereLocked(w kv.Worker, m *modelFeeds) {
	for _, o := range s.models {
		if _, ok := o.absent.remove(w); ok && o != m {
			o.Forget(w)
		}
	}
}

// removeWorker removes a worker that left from the candidates of the model. engine is the last known
// incarnation of its engine, which may still run. So the worker's requests and measures stay, unless
// too many workers are absent.
func (m *modelFeeds) removeWorker(w kv.Worker, engine uint64) {
	m.RemoveCard(w)
	if !m.absent.add(w, engine) {
		m.Forget(w)
	}
}

// stripBlocks removes the fields about blocks from an announcement, for routers without
// events. It returns false for a pool, whose announcement has no other fields.
func stripBlocks(a *kvevent.Announcement) (ok bool) {
	if a.Owner.Kind != kv.OwnerWorker {
		return false
	}
	a.LastEventID, a.Digest, a.Blocks, a.Pool, a.Card.Silent = 0, 0, 0, 0, true
	a.GroupDigest, a.GroupBlocks, a.Card.Groups = 0, 0, ""
	if a.Health != kvevent.HealthGone {
		a.Health = kvevent.HealthExact
	}
	return true
}

// joinLocked makes the worker of a feed a candidate for requests, or applies its new pool or card.
// If the worker has a new engine, the requests and measures of the old one are forgotten. For the
// feed of a pool joinLocked does nothing.
func (s *Set) joinLocked(f *feed) {
	if f.owner().Kind != kv.OwnerWorker {
		return
	}
	w := f.owner().Worker()
	if absence, ok := f.model.absent.remove(w); ok { // the worker left lately, and is back
		f.engine = absence.engine
	}
	s.forgetElsewhereLocked(w, f.model) // the worker may have served another model before
	if !sameEngine(f.engine, f.announcement.Card.Incarnation) {
		f.model.Forget(w)
	}
	// The scheduler needs the card as soon as the worker is a member.
	f.model.SetCard(w, &f.announcement)
	f.engine = cmp.Or(f.announcement.Card.Incarnation, f.engine)
	f.model.Index().SetGroups(w, f.announcement.Card.Groups.List(), f.announcement.BlockSize)
	if err := f.model.Index().SetMember(w, f.announcement.Pool, true); err != nil {
		s.log.Error("worker cannot join", zap.Stringer("owner", f.owner()), zap.Error(err))
	}
}

// endLocked stops following the publisher of feed f, and removes its owner's blocks from the index.
// A worker gets no more requests and is absent: its engine may still run. reason is for the log.
func (s *Set) endLocked(f *feed, reason string) {
	delete(s.feeds, f.announcement.PublisherID)
	delete(s.byOwner, f.owner())
	s.uncountLocked(f)
	if f.owner().Kind == kv.OwnerWorker {
		w := f.owner().Worker()
		if err := f.model.Index().SetMember(w, 0, false); err != nil {
			s.log.Error("worker cannot leave", zap.Stringer("owner", f.owner()), zap.Error(err))
		}
		f.model.removeWorker(w, f.engine)
	}
	s.dropLocked(f)
	s.log.Info("owner leaves", zap.Stringer("owner", f.owner()),
		zap.String("publisher", source.PublisherName(f.announcement.PublisherID)), zap.String("reason", reason))
}

// dropLocked removes the blocks of feed f from the index and keeps its counters. The caller has
// removed f from the tables of the Set.
func (s *Set) dropLocked(f *feed) {
	metric.Add(&s.counters.Counters, &f.counters)
	// Ignore an answer in flight.
	f.recovery = recovery{lastQuery: f.lastQuery}
	if f.history != nil {
		f.history.Dropped(f.owner(), f.model.Index(), miss.Moment{At: s.lastInput})
	}
	f.model.Index().RemoveOwner(f.owner())
	f.model.feeds--
}

// An engine may outlive its publisher, because its agent may restart. A worker that leaves
// gets no requests and is absent. Its requests and measures stay until the worker is back,
// or for as long as the account keeps a silent request.

// maxAbsent bounds the absent workers of a model.
const maxAbsent = 4096

// absentWorkers are the workers that left and whose engine may still run.
type absentWorkers struct {
	// keep is how long a worker may be absent.
	keep    time.Duration
	workers map[kv.Worker]absence
}

// absence describes a worker that left.
type absence struct {
	// engine is the incarnation of its engine, 0 when unknown.
	engine uint64
	// since is zero until the next expire.
	since time.Time
}

func newAbsentWorkers(keep time.Duration) absentWorkers {
	return absentWorkers{keep: keep, workers: make(map[kv.Worker]absence)}
}

func (a *absentWorkers) len() int { return len(a.workers) }

// add adds a worker that left. It returns false at maxAbsent workers.
func (a *absentWorkers) add(w kv.Worker, engine uint64) bool {
	if len(a.workers) >= maxAbsent {
		return false
	}
	a.workers[w] = absence{engine: engine}
	return true
}

// remove removes and returns the absence of a worker.
func (a *absentWorkers) remove(w kv.Worker) (absence, bool) {
	left, ok := a.workers[w]
	delete(a.workers, w)
	return left, ok
}

// expire removes and returns the workers that were absent for longer than keep. Absence is counted
// from the first call after the worker left.
func (a *absentWorkers) expire(now time.Time) (expired []kv.Worker) {
	for w, left := range a.workers {
		switch {
		case left.since.IsZero():
			left.since = now
			a.workers[w] = left
		case now.Sub(left.since) > a.keep:
			expired = append(expired, w)
			delete(a.workers, w)
		}
	}
	return expired
}

// sameEngine reports whether two incarnations may be the same engine. An unknown
// incarnation, 0, may be any engine: requests of a living engine must not be freed.
func sameEngine(a, b uint64) bool { return a == 0 || b == 0 || a == b }
