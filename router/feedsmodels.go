package router

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// newFeed returns the feed of a publisher, whose blocks are in the index of m.
func newFeed(a *kvevent.Announcement, m *Model) *feedState {
	m.feeds++
	return &feedState{announcement: *a, blocks: m.index, model: m}
}

// openModel returns the model that an announcement names. The error says why there is
// none.
func (s *feedSet) openModel(a *kvevent.Announcement) (*Model, error) {
	most := maxModels
	if a.Owner.Kind != kv.OwnerWorker || source.IsRegistered(a) {
		most = maxModels / 2
	}
	return s.models.open(keyOf(a), most)
}

// keep returns a model that is never retired, making it when it is new.
func (s *feedSet) keep(key ModelKey) (*Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.models.open(key, maxModels)
	if err != nil {
		return nil, err
	}
	m.kept = true
	s.models.changed()
	return m, nil
}

// retireModelsLocked ends the absence of workers that are not coming back, and the
// models that nothing needs any more.
func (s *feedSet) retireModelsLocked(now time.Time) {
	for _, m := range s.models.all() {
		for _, w := range m.absent.expire(now) {
			m.forget(w)
		}
		if !m.idle() {
			continue
		}
		if err := s.models.retire(m); err != nil {
			s.log.Warn("a model that nobody serves is not closed", zap.String("model", m.key.Name), zap.Error(err))
		}
	}
}

// heardLoad hands a load report to the model of its owner. A report of an owner that is
// not known yet is only kept.
func (s *feedSet) heardLoad(l *kvevent.LoadReport) {
	s.mu.Lock()
	f := s.byOwner[l.Owner]
	s.mu.Unlock()
	if f != nil {
		f.model.heardLoad(l)
	}
}
