package router

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
)

// httpRouter runs a router on agents until the test ends.
func httpRouter(t *testing.T, o Options, h HTTPOptions) (*Router, *HTTP) {
	t.Helper()
	h.ReconnectWait = time.Millisecond
	transport, err := ConnectHTTP(h)
	if err != nil {
		t.Fatal(err)
	}
	return runRouter(t, o, transport), transport
}

// TestHTTPCarriesEventsQueriesAndGaps: the way over NATS, without NATS: a late
// router's dump, live events in order, a lost message, load, and a goodbye.
func TestHTTPCarriesEventsQueriesAndGaps(t *testing.T) {
	a := newHTTPAgent(t)
	p := a.publisher(11, workerOwner(1), 0)
	for i := range uint32(20) {
		p.add(kvevent.Stored, kv.TierDevice, promptTokens(1, 2, 100+i), 0)
	}
	r, h := httpRouter(t, Options{}, HTTPOptions{Agents: []string{a.server.URL + "/"}})
	eventually(t, "synced by a dump of many chunks", func() bool {
		return deviceHits(r, promptTokens(1, 2, 119)) == 3 && r.Quality() == QualityExact
	})
	for i := range uint32(300) {
		a.say(kvevent.StreamEvents, p.add(kvevent.Stored, kv.TierDevice, promptTokens(3, 200+i), 0))
		if i%7 == 0 {
			a.say(kvevent.StreamAnnouncement, p.announcement())
		}
	}
	eventually(t, "all live events applied", func() bool { return r.Feeds()[0].Cursor == 320 })
	if f := r.Feeds()[0]; f.Counters.Gaps != 0 || f.Counters.Divergences != 0 {
		t.Errorf("feed %+v: events and announcements got out of order", f)
	}
	p.add(kvevent.Stored, kv.TierDevice, promptTokens(8), 0) // not sent
	a.say(kvevent.StreamEvents, p.add(kvevent.Stored, kv.TierDevice, promptTokens(9), 0))
	eventually(t, "the gap repaired", func() bool {
		return r.Feeds()[0].Counters.GapsRepaired == 1 && deviceHits(r, promptTokens(8)) == 1
	})
	a.say(99, []byte("a frame of a later version"))
	a.say(kvevent.StreamHeartbeat, binary.LittleEndian.AppendUint64(nil, 3))
	a.say(kvevent.StreamLoad, kvevent.AppendLoadReport(nil, &kvevent.LoadReport{PublisherID: 11, Owner: workerOwner(1),
		Worker: kvevent.WorkerLoad{Running: 5}}))
	eventually(t, "the load is known", func() bool { return r.Loads()[workerOwner(1)].Worker.Running == 5 })
	if s := h.Stats(); s.Dropped != 3 || !s.Connected || s.Reconnects != 0 {
		t.Errorf("stats %+v, want 3 frames dropped", s)
	}
	a.say(kvevent.StreamAnnouncement, p.goodbye().Data)
	eventually(t, "the owner gone", func() bool { return r.Stats().Workers == 0 })
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
	first, second := newHTTPAgent(t), newHTTPAgent(t)
	p1, p2 := first.publisher(11, workerOwner(1), 0), second.publisher(12, workerOwner(2), 0)
	p1.add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
	p2.add(kvevent.Stored, kv.TierDevice, promptTokens(2), 0)
	r, h := httpRouter(t, Options{FeedTimeout: 2 * time.Second}, HTTPOptions{Agents: []string{first.server.URL, second.server.URL}})
	eventually(t, "both known", func() bool { return r.Stats().Workers == 2 && r.Quality() == QualityExact })
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
				second.say(kvevent.StreamAnnouncement, p2.announcement())
			}
		}
	})
	defer talking.Wait()
	defer close(stop)
	first.cut(true)
	eventually(t, "the first agent's worker degraded", func() bool {
		w := r.Workers()
		return len(w) == 2 && w[0].Quality == QualityDegraded && w[1].Quality == QualityExact
	})
	if err := r.Ready(); err != nil {
		t.Errorf("ready: %v, want that one agent away is no outage", err)
	}
	eventually(t, "the first agent's worker forgotten", func() bool { return r.Stats().Workers == 1 })
	if agents := h.Agents(); agents[0].Connected == agents[1].Connected {
		t.Errorf("agents %+v", agents)
	}
	p1.add(kvevent.Stored, kv.TierDevice, promptTokens(1, 7), 0)
	first.cut(false)
	eventually(t, "back with what it has now", func() bool {
		return deviceHits(r, promptTokens(1, 7)) == 2 && r.Quality() == QualityExact
	})
}

// TestHTTPAllAgentsAwayForgetsNobody: when nobody can be reached the fault is as
// likely here, and the router goes on with what it knew.
func TestHTTPAllAgentsAwayForgetsNobody(t *testing.T) {
	a := newHTTPAgent(t)
	p := a.publisher(11, workerOwner(1), 0)
	p.add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
	const timeout = time.Second
	r, _ := httpRouter(t, Options{FeedTimeout: timeout}, HTTPOptions{Agents: []string{a.server.URL}})
	eventually(t, "known", func() bool { return deviceHits(r, promptTokens(1)) == 1 && r.Ready() == nil })
	a.cut(true)
	began := time.Now()
	eventually(t, "well beyond the timeout", func() bool {
		if r.Stats().Workers != 1 {
			t.Fatal("the worker was forgotten")
		}
		return time.Since(began) > 2*timeout
	})
	if r.Quality() != QualityDegraded || r.Ready() != nil {
		t.Errorf("quality %s, ready %v", r.Quality(), r.Ready())
	}
	p.add(kvevent.Stored, kv.TierDevice, promptTokens(1, 2), 0)
	a.cut(false)
	eventually(t, "whole again", func() bool { return deviceHits(r, promptTokens(1, 2)) == 2 && r.Quality() == QualityExact })
	if s := r.Stats(); s.Transport.Reconnects != 1 || s.Feeds.Expired != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestHTTPAgentRestarts: other publishers speak for the same owners; what the old
// ones said does not come back with the next outage.
func TestHTTPAgentRestarts(t *testing.T) {
	a := newHTTPAgent(t)
	a.publisher(11, workerOwner(1), 0).add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
	r, h := httpRouter(t, Options{FeedTimeout: 3 * time.Second}, HTTPOptions{Agents: []string{a.server.URL}})
	eventually(t, "known", func() bool { return deviceHits(r, promptTokens(1)) == 1 })
	a.cut(true)
	a.forget(11)
	a.publisher(21, workerOwner(1), 0).add(kvevent.Stored, kv.TierDevice, promptTokens(2), 0)
	a.cut(false)
	eventually(t, "the new one followed", func() bool {
		return deviceHits(r, promptTokens(2)) == 1 && deviceHits(r, promptTokens(1)) == 0 && r.Quality() == QualityExact
	})
	a.cut(true)
	eventually(t, "degraded", func() bool { return r.Quality() == QualityDegraded })
	if f := r.Feeds(); len(f) != 1 || f[0].PublisherID != 21 {
		t.Errorf("feeds %+v", f)
	}
	if err := h.SetAgents(nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody left after the agent is off the list", func() bool { return r.Stats().Workers == 0 && len(h.Agents()) == 0 })
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
		_, h := httpRouter(t, Options{}, HTTPOptions{Agents: []string{server.URL}, Silence: 100 * time.Millisecond})
		eventually(t, name, func() bool { return strings.Contains(h.Agents()[0].Error, c.want) })
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
		o    HTTPOptions
		want string
	}{
		{HTTPOptions{Agents: []string{"http://a:1", "a:2"}}, "agents[1]"},
		{HTTPOptions{Agents: []string{"ftp://a"}}, "agents[0]"},
		{HTTPOptions{Agents: []string{"http://u:hunter2@a"}}, "agents[0]"},
		{HTTPOptions{Agents: []string{"http://u:hunter2%zz@a"}}, "agents[0]"},
		{HTTPOptions{Agents: []string{"http://a/path"}}, "agents[0]"},
		{HTTPOptions{Agents: make([]string, MaxAgents+1)}, "at most"},
		{HTTPOptions{Silence: -1}, "silence"},
	} {
		if h, err := ConnectHTTP(c.o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: want an error with %s and no password", err, c.want)
			if h != nil {
				h.Close()
			}
		}
	}
}
