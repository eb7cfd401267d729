package router_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// permutations calls f with every order of n things.
func permutations(n int, f func(order []int)) {
	var visit func(order []int, left map[int]bool)
	visit = func(order []int, left map[int]bool) {
		if len(left) == 0 {
			f(order)
		}
		for i := range n {
			if !left[i] {
				continue
			}
			delete(left, i)
			visit(append(order[:len(order):len(order)], i), left)
			left[i] = true
		}
	}
	all := make(map[int]bool)
	for i := range n {
		all[i] = true
	}
	visit(nil, all)
}

// TestEveryModelIsServedWhoeverIsHeardFirst: two models with a worker and a pool each,
// and the empty pool of a model that nobody runs, are announced in every order. Each
// request goes to the workers of the model that it names, with the hits of that model.
func TestEveryModelIsServedWhoeverIsHeardFirst(t *testing.T) {
	permutations(5, func(order []int) {
		routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
			a, c := b.Publisher(11, sourcetest.WorkerOwner(1), 71).Of("a", 4), b.Publisher(12, sourcetest.WorkerOwner(2), 72).Of("c", 4)
			poolA, poolC := b.Publisher(13, kv.PoolOwner(71), 0).Of("a", 4), b.Publisher(14, kv.PoolOwner(72), 0).Of("c", 4)
			empty := b.Publisher(15, kv.PoolOwner(73), 0).Of("e", 16)
			all := []*sourcetest.Publisher{a, c, poolA, poolC, empty}
			for _, i := range order {
				b.Send(all[i].Announce())
			}
			b.Send(a.Store(kv.TierDevice, sourcetest.Tokens(1)), poolC.Store(kv.TierHost, sourcetest.Tokens(1, 2)))
			for name, want := range map[string]struct {
				worker       kv.WorkerID
				device, host uint32
			}{"a": {1, 1, 0}, "c": {2, 0, 2}} {
				m, err := b.Router.FindBestMatch(t.Context(), &router.Request{Model: name, Tokens: sourcetest.Tokens(1, 2, 3)})
				if err != nil || m.Worker.ID != want.worker || m.Hits[kv.TierDevice] != want.device || m.Hits[kv.TierHost] != want.host || m.Quality != feed.Exact {
					t.Errorf("order %v, model %s: %+v, %v", order, name, m, err)
				}
			}
			if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); !errors.Is(err, router.ErrModelRequired) {
				t.Errorf("order %v: no model is named: %v", order, err)
			}
			if s := b.Router.Stats(); s.Feeds.Refused != 0 || s.Workers != 2 {
				t.Errorf("order %v: %+v", order, s.Feeds)
			}
		})
	})
}

// TestModelsAreSwappedInEveryOrder: an operator replaces model a by model c on two nodes.
// The worker and the pool of a leave, and those of c join, in every order. At the end c
// is served, a request needs no name, and nothing of a is left.
func TestModelsAreSwappedInEveryOrder(t *testing.T) {
	permutations(4, func(order []int) {
		routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
			a, poolA := b.Publisher(11, sourcetest.WorkerOwner(1), 71).Of("a", 4), b.Publisher(12, kv.PoolOwner(71), 0).Of("a", 4)
			c, poolC := b.Publisher(13, sourcetest.WorkerOwner(2), 72).Of("c", 8), b.Publisher(14, kv.PoolOwner(72), 0).Of("c", 8)
			b.Send(a.Announce(), poolA.Announce(), poolA.Store(kv.TierHost, sourcetest.Tokens(1)))
			if m := b.Best(sourcetest.Tokens(1)); m.Worker.ID != 1 || m.Hits[kv.TierHost] != 1 {
				t.Errorf("before the swap: %+v", m)
			}
			steps := []source.Frame{a.Goodbye(), poolA.Goodbye(), c.Announce(), poolC.Announce()}
			for _, i := range order {
				b.Send(steps[i])
				b.Pass(time.Second)
			}
			if m := b.Best(sourcetest.Tokens(1)); m.Worker.ID != 2 {
				t.Errorf("order %v: %+v", order, m)
			}
			if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Model: "a", Tokens: sourcetest.Tokens(1)}); err == nil {
				t.Errorf("order %v: a is served still", order)
			}
			for range 320 { // longer than a worker may be absent
				b.Send(c.Announce(), poolC.Announce())
				b.Pass(time.Second)
			}
			if m := b.Router.Stats().Models; len(m) != 1 || m[0].Key != (feed.ModelKey{Name: "c", BlockSize: 8}) {
				t.Errorf("order %v: left is %+v", order, m)
			}
		})
	})
}

// TestAPublisherMayChangeItsModel: the blocks of the former model are forgotten, and the
// publisher is asked for what it holds now.
func TestAPublisherMayChangeItsModel(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a", 4)
		b.Send(p.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)))
		p.Of("c", 4)
		b.Send(p.Announce())
		b.Pass(time.Second)
		if m, err := b.Router.FindBestMatch(t.Context(), &router.Request{Model: "c", Tokens: sourcetest.Tokens(1, 2)}); err != nil || m.Hits[kv.TierDevice] != 2 {
			t.Errorf("%+v, %v", m, err)
		}
		if s := b.Router.Stats(); s.Index.Memberships != 2 || s.Feeds.Dumps != 1 || s.Workers != 1 {
			t.Errorf("%+v %+v", s.Index, s.Feeds)
		}
	})
}

// TestBlockSizesOfOneNameShareTheirRequests: while a model is moved to another block
// size, its requests go to the size with more workers, and every worker's requests can
// be ended by their ids alone.
func TestBlockSizesOfOneNameShareTheirRequests(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		b.Send(b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("m", 4).Announce(), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("m", 4).Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		b.Route(h, "before", routertest.NewBody("", 1))
		for id := range uint64(3) {
			b.Send(b.Publisher(20+id, sourcetest.WorkerOwner(5+id), 0).Of("m", 16).Announce())
		}
		if r, got := b.Route(h, "after", routertest.NewBody(`,"model":"m"`, 1)); r.StatusCode != http.StatusOK || !strings.Contains(got, `"worker_id":5,`) && !strings.Contains(got, `"worker_id":6,`) && !strings.Contains(got, `"worker_id":7,`) {
			t.Errorf("%d %s", r.StatusCode, got)
		}
		for _, id := range []string{"before", "after"} {
			if _, got := b.Route(h, id, `{"method":"mark_prefill"}`); !strings.Contains(got, `"success":true`) {
				t.Errorf("%s: %s", id, got)
			}
			if _, got := b.Route(h, id, `{"method":"mark_free","model":"m"}`); !strings.Contains(got, `"active":true`) {
				t.Errorf("%s: %s", id, got)
			}
		}
	})
}

// TestRequestsNameTheirModel: the answers and statuses of every method, with one model
// and with two.
func TestRequestsNameTheirModel(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		h := api.New(b.Router, api.Options{}).Handler()
		expect := func(id, body string, status int, want string) {
			t.Helper()
			if r, got := b.Route(h, id, body); r.StatusCode != status || !strings.Contains(got, want) {
				t.Errorf("%s: %d %s, want %d %s", body, r.StatusCode, got, status, want)
			}
		}
		expect("", routertest.NewBody(`,"model":"a"`, 1), 503, "no workers")
		b.Send(b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a", 4).Announce())
		expect("r1", routertest.NewBody("", 1), 200, `"worker_id":1`)
		expect("r2", routertest.NewBody(`,"model":"a"`, 1), 200, `"worker_id":1`)
		expect("", routertest.NewBody(`,"model":"c"`, 1), 404, `model: \"c\": no worker serves the model: workers serve [\"a\"]`)
		c := b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("c", 8)
		b.Send(c.Announce())
		for _, method := range []string{"new", "potential_loads", "overlap"} {
			expect("", `{"method":"`+method+`","tokens":[1]}`, 400, `model: is required: workers serve [\"a\" \"c\"]`)
			expect(method, `{"method":"`+method+`","tokens":[1],"model":"c"}`, 200, `"worker_id":2`)
		}
		expect("", routertest.NewBody(`,"model":"`+strings.Repeat("x", 1025)+`"`, 1), 400, "model: 1025 bytes are more than 1024")
		expect("r1", `{"method":"mark_free","model":"c"}`, 200, `"active":false`)
		expect("r1", `{"method":"mark_free"}`, 200, `"active":true`)
		expect("r2", `{"method":"mark_prefill","model":"a"}`, 200, `"success":true`)
		shown := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{
			`blockyard_router_workers 2`, `blockyard_router_requests_booked_total 3`,
			`blockyard_router_model_workers{block_size="4",model="a"} 1`, `blockyard_router_model_active_requests{block_size="8",model="c"} 1`,
		} {
			if !strings.Contains(shown, want+"\n") {
				t.Errorf("metrics lack %q", want)
			}
		}
		b.Send(c.Goodbye())
		expect("", routertest.NewBody(`,"model":"c"`, 1), 503, "no workers")
	})
}

// TestBusyThresholdsOfOneModel: those of a model that is named change alone, those of
// none change all, models to come included.
func TestBusyThresholdsOfOneModel(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		b.Send(b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a", 4).Announce(), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("c", 4).Announce())
		h := api.New(b.Router, api.Options{}).ControlHandler()
		ask := func(method, path, body, want string) {
			t.Helper()
			if got := routertest.Text(t, routertest.Call(t, h, method, "/busy_threshold"+path, "", body)); !strings.Contains(got, want) {
				t.Errorf("%s %s %s: %s, want %s", method, path, body, got, want)
			}
		}
		ask("POST", "", `{"active_prefill_tokens_threshold":3}`, `"active_prefill_tokens_threshold":3`)
		ask("POST", "", `{"active_prefill_tokens_threshold":4,"model":"a"}`, `"active_prefill_tokens_threshold":4`)
		ask("GET", "?model=a", "", `"active_prefill_tokens_threshold":4`)
		ask("GET", "?model=c", "", `"active_prefill_tokens_threshold":3`)
		ask("GET", "", "", `"active_prefill_tokens_threshold":3`)
		b.Send(b.Publisher(13, sourcetest.WorkerOwner(3), 0).Of("e", 4).Announce())
		ask("GET", "?model=e", "", `"active_prefill_tokens_threshold":3`)
		ask("GET", "?model=x", "", "no worker serves the model")
	})
}

// TestModelsShareTheMemoryOfTheIndex: a model may take what the others leave, and never
// less than its share.
func TestModelsShareTheMemoryOfTheIndex(t *testing.T) {
	small := routertest.Configured(func(c *config.Config) { c.IndexMemoryBytes = 4 << 20 })
	routertest.OnBench(t, router.Options{Config: small}, func(b *routertest.Bench) {
		fill := func(p *sourcetest.Publisher, prompts int) {
			for n := range prompts {
				var ids []uint32
				for i := range 100 {
					ids = append(ids, uint32(n*100+i))
				}
				b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(ids...)))
			}
		}
		a, c := b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a", 4), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("c", 4)
		b.Send(a.Announce())
		fill(a, 300)
		b.Send(c.Announce())
		fill(c, 300)
		b.Pass(2 * time.Second)
		fill(c, 600)
		fill(a, 600)
		for _, s := range b.Router.Stats().Models {
			if s.Index.Bytes > 4<<20 || s.Index.Memberships < 5000 {
				t.Errorf("%s: %d bytes, %d blocks, %d lost", s.Key, s.Index.Bytes, s.Index.Memberships, s.Index.LostNow)
			}
		}
		if s := b.Router.Stats().Index; s.Bytes > 5<<20 {
			t.Errorf("%d bytes of %d", s.Bytes, 4<<20)
		}
	})
}

// TestAModelHasANameThatMetricsCanShow: bytes that are no text are refused, in the
// snapshot of an earlier version too.
func TestAModelHasANameThatMetricsCanShow(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		b.Send(b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a\xff", 4).Announce())
		if s := b.Router.Stats(); s.Workers != 0 || s.Feeds.Refused != 1 {
			t.Errorf("%d workers, %d refused", s.Workers, s.Feeds.Refused)
		}
		if n := len(b.Router.Models("")); n != 0 {
			t.Errorf("%d models", n)
		}
	})
}

// TestTheNumberOfModelsIsBounded: pools of models without workers take half of the
// places at most, so that a worker finds one.
func TestTheNumberOfModelsIsBounded(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		for id := range uint64(feed.MaxModels) {
			b.Send(b.Publisher(1000+id, kv.PoolOwner(1000+id), 0).Of(fmt.Sprint("p", id), 4).Announce())
		}
		if n := len(b.Router.Models("")); n != feed.MaxModels/2 {
			t.Errorf("%d models of pools alone", n)
		}
		for id := range uint64(feed.MaxModels) {
			b.Send(b.Publisher(5000+id, sourcetest.WorkerOwner(5000+id), 0).Of(fmt.Sprint("w", id), 4).Announce())
		}
		if s := b.Router.Stats(); s.Workers != feed.MaxModels/2 || s.Feeds.Refused != feed.MaxModels {
			t.Errorf("%d workers, %d refused", s.Workers, s.Feeds.Refused)
		}
	})
}
