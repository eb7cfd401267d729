package api

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// booked returns the ids and tokens to compute of the booked requests that a router lists.
func (r *natsRouter) booked() (ids []string) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.api.ControlHandler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/bookings", nil))
	var all []bookingAnswer
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
		r.t.Fatalf("%s: %v", w.Body, err)
	}
	for _, b := range all {
		ids = append(ids, fmt.Sprintf("%s %d", b.RequestID, b.PrefillTokens))
	}
	return ids
}

// TestRoutersShareBookingsOverNATS: a booking is in every router, a mark may go to any, and the
// bookings of a router that stops end everywhere.
func TestRoutersShareBookingsOverNATS(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	c := config.Default()
	c.RouterReplicaSync = true
	first := newNATSRouterWith(t, url, 7, router.Options{Config: &c}, drainTimeout)
	prompt := routertest.TokensJSON(sourcetest.Tokens(1, 2))
	first.serving()
	own := first.ask(RouteSubject("c"), "", `{"method":"mark_free","request_id":"nobody"}`).Header.Get(RouterHeader)
	for i := range 3 {
		first.ask(own, fmt.Sprint("r", i), `{"method":"new","tokens":`+prompt+`}`)
	}
	second := newNATSRouterWith(t, url, 7, router.Options{Config: &c}, drainTimeout) // joins when bookings are there
	all := []*natsRouter{first, second}
	each := func(what string, want ...string) {
		t.Helper()
		for i, r := range all {
			sourcetest.Eventually(t, fmt.Sprintf("router %d: %s", i, what), func() bool { return slices.Equal(r.booked(), want) })
		}
	}
	each("three bookings", "r0 8", "r1 8", "r2 8")
	other := ""
	sourcetest.Eventually(t, "the second router answers", func() bool {
		other = second.ask(RouteSubject("c"), "", `{"method":"mark_free","request_id":"nobody"}`).Header.Get(RouterHeader)
		return other != own
	})
	mark := func(id, method, want string) {
		t.Helper()
		if m := second.ask(other, id, `{"method":"`+method+`"}`); string(m.Data) != want {
			t.Errorf("%s of %s at the other router: %s, want %s", method, id, m.Data, want)
		}
	}
	mark("r0", "mark_prefill", `{"method":"prefill_marked","success":true}`)
	mark("r1", "mark_free", `{"method":"free_marked","success":true,"active":true}`)
	sourcetest.Eventually(t, "an answer that no router has r9", func() bool { // not before all have been heard
		return string(second.ask(other, "r9", `{"method":"mark_prefill"}`).Data) == `{"method":"prefill_marked","success":false}`
	})
	each("a mark and an end", "r0 0", "r2 8")
	first.stop()
	all = all[1:]
	each("no booking of a router that stopped")
}

// TestBookingsOfARouterThatDiedEnd: nobody hears of it, and a mark of its requests is refused until then.
func TestBookingsOfARouterThatDiedEnd(t *testing.T) {
	srv := sourcetest.StartServer(t)
	c := config.Default()
	c.RouterReplicaSync = true
	r := newNATSRouterWith(t, srv.ClientURL(), 7, router.Options{Config: &c}, drainTimeout)
	r.serving()
	dead, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	died, key := replica.NewState("c", 11), r.router.Models("")[0].Key()
	died.Open(replica.Model{Name: key.Name, BlockSize: key.BlockSize}).Booked(&load.Booking{Number: 5,
		Request: load.Request{ID: "r5", Worker: kv.Worker{ID: 7}, PrefillTokens: 9}, Progress: load.Progress{PromptWeight: 1 << 30}})
	for _, o := range died.Outgoing(nil, time.Now()) {
		if err := dead.Publish(o.Subject, o.Data); err != nil {
			t.Fatal(err)
		}
	}
	sourcetest.Eventually(t, "the booking of a router that died", func() bool { return slices.Equal(r.booked(), []string{"r5 9"}) })
	m := r.ask(RouteSubject("c"), "r5", `{"method":"mark_free"}`)
	if code := m.Header.Get(NATSErrorCodeHeader); code != "503" && len(r.booked()) > 0 {
		t.Errorf("mark of a dead router's request: %s %s", code, m.Data)
	}
	sourcetest.Eventually(t, "the end of the booking", func() bool { return len(r.booked()) == 0 })
}
