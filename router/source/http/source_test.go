package http

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// httpRouter runs a router on agents until the test ends.
func httpRouter(t *testing.T, o router.Options, h Options) (*router.Router, *Source) {
	t.Helper()
	h.ReconnectWait = time.Millisecond
	transport, err := Connect(h)
	if err != nil {
		t.Fatal(err)
	}
	return routertest.RunRouter(t, o, transport), transport
}

// TestHTTPCarriesEventsQueriesAndGaps: the way over NATS, without NATS: a late
// router's dump, live events in order, a lost message, load, and a goodbye.
func TestHTTPCarriesEventsQueriesAndGaps(t *testing.T) {
	a := sourcetest.NewAgent(t)
	p := a.Publisher(11, sourcetest.WorkerOwner(1), 0)
	for i := range uint32(20) {
		p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1, 2, 100+i), 0)
	}
	r, h := httpRouter(t, router.Options{}, Options{Agents: []string{a.Server.URL + "/"}})
	sourcetest.Eventually(t, "synced by a dump of many chunks", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(1, 2, 119)) == 3 && r.Quality() == feed.Exact
	})
	for i := range uint32(300) {
		a.Say(kvevent.StreamEvents, p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(3, 200+i), 0))
		if i%7 == 0 {
			a.Say(kvevent.StreamAnnouncement, p.Announcement())
		}
	}
	sourcetest.Eventually(t, "all live events applied", func() bool { return r.Feeds()[0].Cursor == 320 })
	if f := r.Feeds()[0]; f.Counters.Gaps != 0 || f.Counters.Divergences != 0 {
		t.Errorf("feed %+v: events and announcements got out of order", f)
	}
	p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(8), 0) // not sent
	a.Say(kvevent.StreamEvents, p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(9), 0))
	sourcetest.Eventually(t, "the gap repaired", func() bool {
		return r.Feeds()[0].Counters.GapsRepaired == 1 && routertest.DeviceHits(r, sourcetest.Tokens(8)) == 1
	})
	a.Say(99, []byte("a frame of a later version"))
	a.Say(kvevent.StreamHeartbeat, binary.LittleEndian.AppendUint64(nil, 3))
	a.Say(kvevent.StreamLoad, kvevent.AppendLoadReport(nil, &kvevent.LoadReport{PublisherID: 11, Owner: sourcetest.WorkerOwner(1),
		Worker: kvevent.WorkerLoad{Running: 5}}))
	sourcetest.Eventually(t, "the load is known", func() bool { return r.Loads()[sourcetest.WorkerOwner(1)].Worker.Running == 5 })
	if s := h.Stats(); s.Dropped != 3 || !s.Connected || s.Reconnects != 0 {
		t.Errorf("stats %+v, want 3 frames dropped", s)
	}
	a.Say(kvevent.StreamAnnouncement, p.Goodbye().Data)
	sourcetest.Eventually(t, "the owner gone", func() bool { return r.Stats().Workers == 0 })
	if _, err := h.Query(t.Context(), 11, kvevent.QueryRequest{}); err == nil || !strings.Contains(err.Error(), "no agent has announced") {
		t.Errorf("query of a publisher that is gone: %v", err)
	}
	if s := r.Stats(); s.Feeds.Divergences != 0 || s.Feeds.Undecodable != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestHTTPAgentAway: an agent that cannot be reached degrades its own workers, and is
// forgotten after the timeout as long as others can be reached.
func TestHTTPAgentAway(t *testing.T) {
	first, second := sourcetest.NewAgent(t), sourcetest.NewAgent(t)
	p1, p2 := first.Publisher(11, sourcetest.WorkerOwner(1), 0), second.Publisher(12, sourcetest.WorkerOwner(2), 0)
	p1.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1), 0)
	p2.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(2), 0)
	r, h := httpRouter(t, router.Options{FeedTimeout: 2 * time.Second}, Options{Agents: []string{first.Server.URL, second.Server.URL}})
	sourcetest.Eventually(t, "both known", func() bool { return r.Stats().Workers == 2 && r.Quality() == feed.Exact })
	stop := make(chan struct{})
	var talking sync.WaitGroup
	talking.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				second.Say(kvevent.StreamAnnouncement, p2.Announcement())
			}
		}
	})
	defer talking.Wait()
	defer close(stop)
	first.Cut(true)
	sourcetest.Eventually(t, "the first agent's worker degraded", func() bool {
		w := r.Workers()
		return len(w) == 2 && w[0].Quality == feed.Degraded && w[1].Quality == feed.Exact
	})
	if err := r.Ready(); err != nil {
		t.Errorf("ready: %v, want that one agent away is no outage", err)
	}
	sourcetest.Eventually(t, "the first agent's worker forgotten", func() bool { return r.Stats().Workers == 1 })
	if agents := h.Agents(); agents[0].Connected == agents[1].Connected {
		t.Errorf("agents %+v", agents)
	}
	p1.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1, 7), 0)
	first.Cut(false)
	sourcetest.Eventually(t, "back with what it has now", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(1, 7)) == 2 && r.Quality() == feed.Exact
	})
}

// TestHTTPAllAgentsAwayForgetsNobody: when nobody can be reached the fault is as
// likely here, and the router goes on with what it knew.
func TestHTTPAllAgentsAwayForgetsNobody(t *testing.T) {
	a := sourcetest.NewAgent(t)
	p := a.Publisher(11, sourcetest.WorkerOwner(1), 0)
	p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1), 0)
	const timeout = time.Second
	r, _ := httpRouter(t, router.Options{FeedTimeout: timeout}, Options{Agents: []string{a.Server.URL}})
	sourcetest.Eventually(t, "known", func() bool { return routertest.DeviceHits(r, sourcetest.Tokens(1)) == 1 && r.Ready() == nil })
	a.Cut(true)
	began := time.Now()
	sourcetest.Eventually(t, "well beyond the timeout", func() bool {
		if r.Stats().Workers != 1 {
			t.Fatal("the worker was forgotten")
		}
		return time.Since(began) > 2*timeout
	})
	if r.Quality() != feed.Degraded || r.Ready() != nil {
		t.Errorf("quality %s, ready %v", r.Quality(), r.Ready())
	}
	p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1, 2), 0)
	a.Cut(false)
	sourcetest.Eventually(t, "whole again", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(1, 2)) == 2 && r.Quality() == feed.Exact
	})
	if s := r.Stats(); s.Transport.Reconnects != 1 || s.Feeds.Expired != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestHTTPRefusesWhatIsNoAgent: wrong answers are errors that say so, and no panic.
func TestHTTPRefusesWhatIsNoAgent(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"a page":       {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }, "content type"},
		"not found":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such path", 404) }, "status 404: no such path"},
		"a redirect":   {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", 302) }, "status 302"},
		"a huge frame": {frames([]byte{0xff, 0xff, 0xff, 0xff, 1}), "bad frame"},
		"half a frame": {frames([]byte{9, 0, 0, 0, 1, 2}), "frame of 9 bytes"},
		"the end":      {frames(nil), "ended its stream"},
		"silence": {func(w http.ResponseWriter, r *http.Request) {
			frames(nil)(w, r)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "nothing was heard"},
	} {
		server := httptest.NewServer(c.handler)
		_, h := httpRouter(t, router.Options{}, Options{Agents: []string{server.URL}, Silence: 100 * time.Millisecond})
		sourcetest.Eventually(t, name, func() bool { return strings.Contains(h.Agents()[0].Error, c.want) })
		if err := h.SetAgents(nil); err != nil {
			t.Error(err)
		}
		server.Close()
	}
}

func frames(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-blockyard-frames")
		_, _ = w.Write(b)
	}
}

func TestHTTPErrorsNameWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Agents: []string{"http://a:1", "a:2"}}, "agents[1]"},
		{Options{Agents: []string{"ftp://a"}}, "agents[0]"},
		{Options{Agents: []string{"http://u:hunter2@a"}}, "agents[0]"},
		{Options{Agents: []string{"http://u:hunter2%zz@a"}}, "agents[0]"},
		{Options{Agents: []string{"http://a/path"}}, "agents[0]"},
		{Options{Agents: make([]string, source.MaxAgents+1)}, "at most"},
		{Options{Silence: -1}, "silence"},
	} {
		if h, err := Connect(c.o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: want an error with %s and no password", err, c.want)
			if h != nil {
				h.Close()
			}
		}
	}
}
