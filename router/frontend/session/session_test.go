package session_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/frontend/session"
)

var one, two, three = kv.Worker{ID: 1}, kv.Worker{ID: 2}, kv.Worker{ID: 3}

func key(id string) session.Key { return session.Key{Model: "m", ID: id} }

// bind runs a request of a session that goes to a worker.
func bind(t *session.Table, k session.Key, w kv.Worker, final bool) {
	l := t.Begin(k)
	from, _ := l.Worker()
	l.Bind(from, w)
	l.End(final)
}

// bound returns the worker of a session, 0 for none.
func bound(t *session.Table, k session.Key) kv.WorkerID {
	l := t.Begin(k)
	defer l.End(false)
	w, _ := l.Worker()
	return w.ID
}

// A session stays with its worker until it has been silent for the time to live.
func TestTimeToLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := session.New(time.Minute)
		bind(table, key("a"), one, false)
		for range 5 {
			time.Sleep(59 * time.Second)
			if got := bound(table, key("a")); got != 1 {
				t.Fatalf("the session is at worker %d", got)
			}
		}
		time.Sleep(time.Minute)
		if got := bound(table, key("a")); got != 0 {
			t.Errorf("a silent session is at worker %d", got)
		}
		if got := table.Stats().Sessions; got != 0 {
			t.Errorf("%d sessions, want 0: one that was never bound is forgotten", got)
		}
	})
}

// A request in progress keeps its session, however long it takes, and the silence begins at
// its end.
func TestLongRequestKeepsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := session.New(time.Minute)
		l := table.Begin(key("a"))
		l.Bind(kv.Worker{}, one)
		time.Sleep(time.Hour)
		if got := bound(table, key("a")); got != 1 {
			t.Errorf("during the request the session is at worker %d", got)
		}
		l.End(false)
		l.End(false)
		time.Sleep(59 * time.Second)
		if got := bound(table, key("a")); got != 1 {
			t.Errorf("after the request the session is at worker %d", got)
		}
	})
}

// Tenants and models do not share sessions, and a final request ends one.
func TestKeysAndFinal(t *testing.T) {
	table := session.New(time.Minute)
	keys := []session.Key{{ID: "a"}, {Tenant: "t", ID: "a"}, {Model: "m", ID: "a"}}
	for i, k := range keys {
		bind(table, k, kv.Worker{ID: kv.WorkerID(i + 1)}, false)
	}
	for i, k := range keys {
		if got := bound(table, k); got != kv.WorkerID(i+1) {
			t.Errorf("%+v is at worker %d, want %d", k, got, i+1)
		}
	}
	bind(table, keys[0], one, true)
	if got := bound(table, keys[0]); got != 0 {
		t.Errorf("an ended session is at worker %d", got)
	}
}

// Of requests that begin a session together the first decides. A move needs the worker that it
// moves from.
func TestFirstDecides(t *testing.T) {
	table := session.New(time.Minute)
	a, b := table.Begin(key("a")), table.Begin(key("a"))
	none, _ := a.Worker()
	a.Bind(none, one)
	b.Bind(none, two)
	if w, _ := b.Worker(); w != one {
		t.Errorf("the session is at %s, want %s", w, one)
	}
	a.Bind(one, two) // worker 1 is gone
	b.Bind(one, three)
	if w, _ := b.Worker(); w != two {
		t.Errorf("the session is at %s, want %s", w, two)
	}
	b.Bind(two, two)
	if s := table.Stats(); s.Moved != 1 || s.Followed != 1 || s.Sessions != 1 {
		t.Errorf("%+v", s)
	}
	a.End(true)
	if w, ok := b.Worker(); !ok || w != two {
		t.Errorf("another request of an ended session is at %s", w)
	}
	b.End(true)
	if s := table.Stats(); s.Sessions != 0 {
		t.Errorf("%+v", s)
	}
}

// A full table forgets the session with the oldest use.
func TestFullTable(t *testing.T) {
	table := session.New(time.Hour)
	for i := range 65536 {
		bind(table, key(strconv.Itoa(i)), one, false)
	}
	held := table.Begin(key("1")) // used again
	bind(table, key("more"), one, false)
	if got := bound(table, key("more")); got != 1 {
		t.Errorf("the new session is at worker %d", got)
	}
	held.End(false)
	if got := bound(table, key("1")); got != 1 {
		t.Errorf("a used session is at worker %d", got)
	}
	if s := table.Stats(); s.Sessions != 65536 || s.Evicted != 1 {
		t.Errorf("%+v", s)
	}
}

func TestConcurrentUse(t *testing.T) {
	table := session.New(time.Hour)
	var g sync.WaitGroup
	for n := range 8 {
		g.Go(func() {
			for i := range 200 {
				bind(table, key(strconv.Itoa(i%10)), kv.Worker{ID: kv.WorkerID(n)}, i%7 == 0)
			}
		})
	}
	g.Wait()
	if got := table.Stats().Sessions; got > 10 {
		t.Errorf("%d sessions, want at most 10", got)
	}
}

// Dynamo's header comes first, then those of coding agents, then the body.
func TestID(t *testing.T) {
	all := http.Header{}
	want := "body"
	for _, name := range []string{"Session-Id", "X-Session-Id", "X-Claude-Code-Session-Id", "X-Dynamo-Session-ID"} {
		if got, err := session.ID(all, "body"); err != nil || got != want {
			t.Errorf("%v: %q, %v, want %q", all, got, err, want)
		}
		all.Set(name, name)
		want = name
	}
	if got, err := session.ID(all, "body"); err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	all.Set("X-Dynamo-Session-ID", strings.Repeat("x", 257))
	for _, c := range []struct {
		h    http.Header
		body string
		want string
	}{
		{all, "", "X-Dynamo-Session-Id: 257 bytes, want at most 256"},
		{http.Header{}, strings.Repeat("x", 300), "session_id: 300 bytes, want at most 256"},
	} {
		if _, err := session.ID(c.h, c.body); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

func Example() {
	sessions := session.New(10 * time.Minute)
	lease := sessions.Begin(session.Key{Model: "m", ID: "conversation-7"})
	defer lease.End(false)
	w, bound := lease.Worker()
	fmt.Println(w, bound)
	lease.Bind(w, kv.Worker{ID: 3})
	w, bound = lease.Worker()
	fmt.Println(w, bound)
	// Output:
	// 0/0 false
	// 3/0 true
}
