package feed

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/source"
)

// ModelKey tells models apart. A block of one key is never a hit for another key.
type ModelKey struct {
	// Name is the model's name in announcements, registrations and requests.
	Name string
	// BlockSize is in tokens.
	BlockSize uint32
}

// String is the key as errors and logs show it.
func (k ModelKey) String() string { return fmt.Sprintf("%q with block size %d", k.Name, k.BlockSize) }

func keyOf(a *kvevent.Announcement) ModelKey { return ModelKey{a.Model, a.BlockSize} }

// maxModels bounds the models of a router. Pools and registrations open a new model only
// while fewer than half of them are open, so that they keep no agent's worker out.
const MaxModels = 256

// errTooManyModels is the error of ModelDirectory.Open for a model more than there may be.
var ErrTooManyModels = fmt.Errorf("there are %d models already", MaxModels)

// ModelDirectory has the models that feeds are of.
type Models interface {
	// Open makes the model of a key, unless there are most models.
	Open(key ModelKey, most int) (Model, error)
	// Retire forgets a model that nothing needs any more.
	Retire(m Model) error
	// Changed is told that the workers of a model have changed.
	Changed()
}

// FollowedModel is what the feeds keep up to date of one model. Its methods are called
// with the lock of the feeds held, but for HeardLoad.
type Model interface {
	// Index is where the blocks of the model's owners are.
	Index() *index.Index
	// SetView publishes what a decision needs to know of the workers.
	SetView(v View)
	// Described takes in a worker's card before the worker is a member.
	Described(w kv.Worker, a *kvevent.Announcement)
	// Left takes in that a worker is no candidate any more. Its requests and measures stay.
	Left(w kv.Worker)
	// Forget drops the requests of a worker and what was learned of it.
	Forget(w kv.Worker)
	// HeardLoad takes in a load report of one of the model's workers or pools.
	HeardLoad(l *kvevent.LoadReport)
	// Idle reports whether no worker and no request is left.
	Idle() bool
}

// modelFeeds are the feeds of one model.
type modelFeeds struct {
	Model
	key ModelKey
	// feeds counts the feeds of the model, restored ones included.
	feeds int
	// kept is true for a model that the embedding program asked for. Its workers may
	// be ones that no feed speaks for, so the model is never retired.
	kept  bool
	tally tally
	// absent are workers that left lately and whose engine may still run.
	absent absentWorkers
	// view is the one that was published last.
	view View
}

// newFeed returns the feed of a publisher, whose blocks are in the index of m.
func newFeed(a *kvevent.Announcement, m *modelFeeds) *feed {
	m.feeds++
	return &feed{announcement: *a, blocks: m.Index(), model: m}
}

// openModel returns the model that an announcement names. The error says why there is
// none.
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

// retireModelsLocked ends the absence of workers that are not coming back, and the
// models that nothing needs any more.
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
			s.log.Warn("a model that nobody serves is not closed", zap.String("model", m.key.Name), zap.Error(err))
		}
	}
}

// heardLoad hands a load report to the model of its owner. A report of an owner that is
// not known yet is only kept.
func (s *Set) heardLoad(l *kvevent.LoadReport) {
	s.mu.Lock()
	f := s.byOwner[l.Owner]
	s.mu.Unlock()
	if f != nil {
		f.model.HeardLoad(l)
	}
}

// forgetElsewhereLocked forgets a worker that left other models than m: its engine
// serves m now.
func (s *Set) forgetElsewhereLocked(w kv.Worker, m *modelFeeds) {
	for _, o := range s.models {
		if _, ok := o.absent.take(w); ok && o != m {
			o.Forget(w)
		}
	}
}

// left takes in that a worker of an engine is no candidate any more.
func (m *modelFeeds) left(w kv.Worker, engine uint64) {
	m.Left(w)
	if !m.absent.add(w, engine) {
		m.Forget(w)
	}
}
