package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// TestSetQueueKeepsTheWaiting: a queue with other rules takes over the requests that wait, in the order
// of the new rules, and its counters.
func TestSetQueueKeepsTheWaiting(t *testing.T) {
	inLine(t, 1, nil, func(t *testing.T, l *line) {
		s, ctx, limit := l.scheduler, t.Context(), int64(100)
		tokens := func(n int) func(*Request) { return func(r *Request) { r.Tokens = n } }
		l.send(ctx, "running", nil)
		for id, n := range map[string]int{"long": 303, "short": 101, "middle": 202} {
			l.send(ctx, id, tokens(n))
		}
		l.expect("running@1")
		classes := &queue.Profile{
			DefaultFamily: "default",
			Buckets:       []queue.Bucket{{Name: "short"}, {MinTokens: 150, Name: "long"}},
			Classes: []queue.Class{
				{Name: "s", Family: "default", Bucket: "short", Quantum: 1 << 20, ThresholdTokens: &limit},
				{Name: "l", Family: "default", Bucket: "long", Quantum: 1, ThresholdTokens: &limit, Discipline: queue.WSPT, Limits: queue.Limits{Requests: 1}},
			},
		}
		bad := -time.Second
		if err := s.SetQueue(queue.Options{MaxWait: bad}); err == nil || !strings.Contains(err.Error(), "-1s is negative") {
			t.Errorf("error %v, want one that names the wait", err)
		}
		if err := s.SetQueue(queue.Options{Profile: classes}); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats().Queue; st.Pending != 3 || st.Queued != 3 || st.Tokens != 606 {
			t.Errorf("after the change: %+v", st)
		}
		// A class that is beyond its new limit keeps its requests and takes no further one.
		if _, err := s.Schedule(ctx, l.request("late", tokens(303))); err == nil || !strings.Contains(err.Error(), `"l"`) && !strings.Contains(err.Error(), "full") {
			t.Errorf("error %v, want a refusal by the limit of class l", err)
		}
		for _, want := range []string{"short", "middle", "long"} {
			s.Free(map[string]string{"short": "running", "middle": "short", "long": "middle"}[want])
			l.expect(want + "@1")
		}
		// Without a threshold nobody waits.
		l.send(ctx, "waits", nil)
		if err := s.SetQueue(queue.Options{}); err != nil {
			t.Fatal(err)
		}
		l.expect("waits@1")
		l.send(ctx, "does not", nil)
		l.expect("does not@1")
	})
}

// TestSetQueueAfterWorkersLeft: a request that waits is classified by what the present workers have of its
// prompt. Its hits came with the list of an earlier fleet.
func TestSetQueueAfterWorkersLeft(t *testing.T) {
	current := fleet(4)
	inLine(t, 4, func(o *Options) { o.Members = func() *index.Members { return current } }, func(t *testing.T, l *line) {
		s, ctx, limit := l.scheduler, t.Context(), int64(100)
		for _, id := range []string{"a", "b", "c", "d"} {
			l.send(ctx, id, nil)
		}
		l.expect("a@1", "b@2", "c@3", "d@4")
		tokens := func(hits ...index.Hit) func(*Request) {
			return func(r *Request) { r.Tokens, r.Members, r.Hits = 192, current, hits }
		}
		l.send(ctx, "kept", tokens(index.Hit{Member: 2, Hits: hits(6, 0, 0, 0)}))
		l.send(ctx, "lost", tokens(index.Hit{Member: 3, Hits: hits(6, 0, 0, 0)}))
		left := fleet(3)
		left.List = left.List[1:] // workers 1 and 4 leave: worker 3 has another number
		current = left
		s.Tick()
		if err := s.SetQueue(queue.Options{Profile: &queue.Profile{
			DefaultFamily: "default",
			Buckets:       []queue.Bucket{{Name: "short"}, {MinTokens: 150, Name: "long"}},
			Classes: []queue.Class{
				{Name: "s", Family: "default", Bucket: "short", Quantum: 1}, // which never waits
				{Name: "l", Family: "default", Bucket: "long", Quantum: 1, ThresholdTokens: &limit},
			},
		}}); err != nil {
			t.Fatal(err)
		}
		l.expect("kept@3") // 96 tokens are left to compute; all 192 of the other one
	})
}
