package feed

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// testModels is a directory of models that are nothing but an index.
type testModels struct {
	open   map[ModelKey]*testModel
	memory *miss.Memory
}

type testModel struct {
	key   ModelKey
	index *index.Index
	view  View
	// history is nil unless a test sets testModels.memory.
	history *miss.History
}

func (d *testModels) Open(key ModelKey, most int) (Model, error) {
	if len(d.open) >= most {
		return nil, ErrTooManyModels
	}
	i, err := index.New(index.Options{})
	if err != nil {
		return nil, err
	}
	d.open[key] = &testModel{key: key, index: i}
	if d.memory != nil {
		d.open[key].history = d.memory.Of()
	}
	return d.open[key], nil
}

func (d *testModels) Retire(m Model) error {
	delete(d.open, m.(*testModel).key)
	return nil
}

func (*testModels) Changed() {}

func (m *testModel) Index() *index.Index                    { return m.index }
func (m *testModel) SetView(v View)                         { m.view = v }
func (*testModel) SetCard(kv.Worker, *kvevent.Announcement) {}
func (*testModel) RemoveCard(kv.Worker)                     {}
func (*testModel) Forget(kv.Worker)                         {}
func (*testModel) ApplyLoad(*kvevent.LoadReport)            {}
func (m *testModel) History() *miss.History                 { return m.history }
func (m *testModel) Idle() bool                             { return len(m.index.Members().List) == 0 }

// freshFeeds are feeds without a router.
func freshFeeds(testing.TB) *Set {
	return New(Options{Models: &testModels{open: make(map[ModelKey]*testModel)}, Log: zap.NewNop(),
		Timeout: 15 * time.Second, KeepAbsent: time.Minute, MaxFeeds: 1 << 14, MaxQueries: 16})
}

// onlyFeeds are the feeds of the only model.
func onlyFeeds(t testing.TB, s *Set) *modelFeeds {
	t.Helper()
	if len(s.models) != 1 {
		t.Fatalf("%d models, want 1", len(s.models))
	}
	for _, m := range s.models {
		return m
	}
	return nil
}

// answer has a publisher answer the queries to it, and those that follow.
func (s *Set) answer(p *sourcetest.Publisher, due []Query, now time.Time) {
	for len(due) > 0 {
		q := due[0]
		due = append(due[1:], s.Answered(&q, p.Answer(q.Request), nil, now)...)
	}
}
