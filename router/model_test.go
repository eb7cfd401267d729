package router

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
)

// onlyModel is the model of a router that serves one.
func onlyModel(t testing.TB, d *Models) *Model {
	t.Helper()
	all := d.all()
	if len(all) != 1 {
		t.Fatalf("%d models, want 1", len(all))
	}
	return all[0]
}

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
		onBench(t, Options{}, func(b *bench) {
			a, c := b.publisher(11, workerOwner(1), 71).of("a", 4), b.publisher(12, workerOwner(2), 72).of("c", 4)
			poolA, poolC := b.publisher(13, kv.PoolOwner(71), 0).of("a", 4), b.publisher(14, kv.PoolOwner(72), 0).of("c", 4)
			empty := b.publisher(15, kv.PoolOwner(73), 0).of("e", 16)
			all := []*testPublisher{a, c, poolA, poolC, empty}
			for _, i := range order {
				b.send(all[i].announce())
			}
			b.send(a.store(kv.TierDevice, promptTokens(1)), poolC.store(kv.TierHost, promptTokens(1, 2)))
			for name, want := range map[string]struct {
				worker       kv.WorkerID
				device, host uint32
			}{"a": {1, 1, 0}, "c": {2, 0, 2}} {
				m, err := b.router.FindBestMatch(t.Context(), &Request{Model: name, Tokens: promptTokens(1, 2, 3)})
				if err != nil || m.Worker.ID != want.worker || m.Hits[kv.TierDevice] != want.device || m.Hits[kv.TierHost] != want.host || m.Quality != QualityExact {
					t.Errorf("order %v, model %s: %+v, %v", order, name, m, err)
				}
			}
			if _, err := b.router.FindBestMatch(t.Context(), &Request{Tokens: promptTokens(1)}); !errors.Is(err, ErrModelRequired) {
				t.Errorf("order %v: no model is named: %v", order, err)
			}
			if s := b.router.Stats(); s.Feeds.Refused != 0 || s.Workers != 2 {
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
		onBench(t, Options{}, func(b *bench) {
			a, poolA := b.publisher(11, workerOwner(1), 71).of("a", 4), b.publisher(12, kv.PoolOwner(71), 0).of("a", 4)
			c, poolC := b.publisher(13, workerOwner(2), 72).of("c", 8), b.publisher(14, kv.PoolOwner(72), 0).of("c", 8)
			b.send(a.announce(), poolA.announce(), poolA.store(kv.TierHost, promptTokens(1)))
			if m := b.best(promptTokens(1)); m.Worker.ID != 1 || m.Hits[kv.TierHost] != 1 {
				t.Errorf("before the swap: %+v", m)
			}
			steps := []Frame{a.goodbye(), poolA.goodbye(), c.announce(), poolC.announce()}
			for _, i := range order {
				b.send(steps[i])
				b.pass(time.Second)
			}
			if m := b.best(promptTokens(1)); m.Worker.ID != 2 {
				t.Errorf("order %v: %+v", order, m)
			}
			if _, err := b.router.FindBestMatch(t.Context(), &Request{Model: "a", Tokens: promptTokens(1)}); err == nil {
				t.Errorf("order %v: a is served still", order)
			}
			for range 320 { // longer than a worker may be absent
				b.send(c.announce(), poolC.announce())
				b.pass(time.Second)
			}
			if m := onlyModel(t, b.router.models); m.key != (ModelKey{"c", 8}) {
				t.Errorf("order %v: left is %s", order, m.key)
			}
		})
	})
}

// TestAPublisherMayChangeItsModel: the blocks of the former model are forgotten, and the
// publisher is asked for what it holds now.
func TestAPublisherMayChangeItsModel(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		p := b.publisher(11, workerOwner(1), 0).of("a", 4)
		b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1, 2)))
		p.of("c", 4)
		b.send(p.announce())
		b.pass(time.Second)
		if m, err := b.router.FindBestMatch(t.Context(), &Request{Model: "c", Tokens: promptTokens(1, 2)}); err != nil || m.Hits[kv.TierDevice] != 2 {
			t.Errorf("%+v, %v", m, err)
		}
		if s := b.router.Stats(); s.Index.Memberships != 2 || s.Feeds.Dumps != 1 || s.Workers != 1 {
			t.Errorf("%+v %+v", s.Index, s.Feeds)
		}
	})
}

// TestBlockSizesOfOneNameShareTheirRequests: while a model is moved to another block
// size, its requests go to the size with more workers, and every worker's requests can
// be ended by their ids alone.
func TestBlockSizesOfOneNameShareTheirRequests(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		b.send(b.publisher(11, workerOwner(1), 0).of("m", 4).announce(), b.publisher(12, workerOwner(2), 0).of("m", 4).announce())
		h := b.router.Handler()
		b.route(h, "before", newBody("", 1))
		for id := range uint64(3) {
			b.send(b.publisher(20+id, workerOwner(5+id), 0).of("m", 16).announce())
		}
		if r, got := b.route(h, "after", newBody(`,"model":"m"`, 1)); r.StatusCode != http.StatusOK || !strings.Contains(got, `"worker_id":5,`) && !strings.Contains(got, `"worker_id":6,`) && !strings.Contains(got, `"worker_id":7,`) {
			t.Errorf("%d %s", r.StatusCode, got)
		}
		for _, id := range []string{"before", "after"} {
			if _, got := b.route(h, id, `{"method":"mark_prefill"}`); !strings.Contains(got, `"success":true`) {
				t.Errorf("%s: %s", id, got)
			}
			if _, got := b.route(h, id, `{"method":"mark_free","model":"m"}`); !strings.Contains(got, `"active":true`) {
				t.Errorf("%s: %s", id, got)
			}
		}
	})
}

// TestRequestsNameTheirModel: the answers and statuses of every method, with one model
// and with two.
func TestRequestsNameTheirModel(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		h := b.router.Handler()
		expect := func(id, body string, status int, want string) {
			t.Helper()
			if r, got := b.route(h, id, body); r.StatusCode != status || !strings.Contains(got, want) {
				t.Errorf("%s: %d %s, want %d %s", body, r.StatusCode, got, status, want)
			}
		}
		expect("", newBody(`,"model":"a"`, 1), 503, "no workers")
		b.send(b.publisher(11, workerOwner(1), 0).of("a", 4).announce())
		expect("r1", newBody("", 1), 200, `"worker_id":1`)
		expect("r2", newBody(`,"model":"a"`, 1), 200, `"worker_id":1`)
		expect("", newBody(`,"model":"c"`, 1), 404, `model: \"c\": no worker serves the model: workers serve [\"a\"]`)
		c := b.publisher(12, workerOwner(2), 0).of("c", 8)
		b.send(c.announce())
		for _, method := range []string{"new", "potential_loads", "overlap"} {
			expect("", `{"method":"`+method+`","tokens":[1]}`, 400, `model: is required: workers serve [\"a\" \"c\"]`)
			expect(method, `{"method":"`+method+`","tokens":[1],"model":"c"}`, 200, `"worker_id":2`)
		}
		expect("", newBody(`,"model":"`+strings.Repeat("x", 1025)+`"`, 1), 400, "model: 1025 bytes are more than 1024")
		expect("r1", `{"method":"mark_free","model":"c"}`, 200, `"active":false`)
		expect("r1", `{"method":"mark_free"}`, 200, `"active":true`)
		expect("r2", `{"method":"mark_prefill","model":"a"}`, 200, `"success":true`)
		shown := text(t, call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{
			`blockyard_router_workers 2`, `blockyard_router_requests_booked_total 3`,
			`blockyard_router_model_workers{block_size="4",model="a"} 1`, `blockyard_router_model_active_requests{block_size="8",model="c"} 1`,
		} {
			if !strings.Contains(shown, want+"\n") {
				t.Errorf("metrics lack %q", want)
			}
		}
		b.send(c.goodbye())
		expect("", newBody(`,"model":"c"`, 1), 503, "no workers")
	})
}

// TestBusyThresholdsOfOneModel: those of a model that is named change alone, those of
// none change all, models to come included.
func TestBusyThresholdsOfOneModel(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		b.send(b.publisher(11, workerOwner(1), 0).of("a", 4).announce(), b.publisher(12, workerOwner(2), 0).of("c", 4).announce())
		h := b.router.ControlHandler()
		ask := func(method, path, body, want string) {
			t.Helper()
			if got := text(t, call(t, h, method, "/busy_threshold"+path, "", body)); !strings.Contains(got, want) {
				t.Errorf("%s %s %s: %s, want %s", method, path, body, got, want)
			}
		}
		ask("POST", "", `{"active_prefill_tokens_threshold":3}`, `"active_prefill_tokens_threshold":3`)
		ask("POST", "", `{"active_prefill_tokens_threshold":4,"model":"a"}`, `"active_prefill_tokens_threshold":4`)
		ask("GET", "?model=a", "", `"active_prefill_tokens_threshold":4`)
		ask("GET", "?model=c", "", `"active_prefill_tokens_threshold":3`)
		ask("GET", "", "", `"active_prefill_tokens_threshold":3`)
		b.send(b.publisher(13, workerOwner(3), 0).of("e", 4).announce())
		ask("GET", "?model=e", "", `"active_prefill_tokens_threshold":3`)
		ask("GET", "?model=x", "", "no worker serves the model")
	})
}

// TestModelsShareTheMemoryOfTheIndex: a model may take what the others leave, and never
// less than its share.
func TestModelsShareTheMemoryOfTheIndex(t *testing.T) {
	small := configured(func(c *config.Config) { c.IndexMemoryBytes = 4 << 20 })
	onBench(t, Options{Config: small}, func(b *bench) {
		fill := func(p *testPublisher, prompts int) {
			for n := range prompts {
				var ids []uint32
				for i := range 100 {
					ids = append(ids, uint32(n*100+i))
				}
				b.send(p.store(kv.TierDevice, promptTokens(ids...)))
			}
		}
		a, c := b.publisher(11, workerOwner(1), 0).of("a", 4), b.publisher(12, workerOwner(2), 0).of("c", 4)
		b.send(a.announce())
		fill(a, 300)
		b.send(c.announce())
		fill(c, 300)
		b.pass(2 * time.Second)
		fill(c, 600)
		fill(a, 600)
		for _, s := range b.router.Stats().Models {
			if s.Index.Bytes > 4<<20 || s.Index.Memberships < 5000 {
				t.Errorf("%s: %d bytes, %d blocks, %d lost", s.Key, s.Index.Bytes, s.Index.Memberships, s.Index.LostNow)
			}
		}
		if s := b.router.Stats().Index; s.Bytes > 5<<20 {
			t.Errorf("%d bytes of %d", s.Bytes, 4<<20)
		}
	})
}

// TestAModelHasANameThatMetricsCanShow: bytes that are no text are refused, in the
// snapshot of an earlier version too.
func TestAModelHasANameThatMetricsCanShow(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		b.send(b.publisher(11, workerOwner(1), 0).of("a\xff", 4).announce())
		if s := b.router.Stats(); s.Workers != 0 || s.Feeds.Refused != 1 {
			t.Errorf("%d workers, %d refused", s.Workers, s.Feeds.Refused)
		}
		image := feedImage{announcement: newTestPublisher(12, workerOwner(2), 0).of("b\xff", 4).meta, cursor: 1}
		if taken, err := b.router.feeds.restoreOne(&image, time.Now()); err != nil || taken {
			t.Error(taken, err)
		}
		if n := len(b.router.models.all()); n != 0 {
			t.Errorf("%d models", n)
		}
	})
}

// TestTheNumberOfModelsIsBounded: pools of models without workers take half of the
// places at most, so that a worker finds one.
func TestTheNumberOfModelsIsBounded(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		for id := range uint64(maxModels) {
			b.send(b.publisher(1000+id, kv.PoolOwner(1000+id), 0).of(fmt.Sprint("p", id), 4).announce())
		}
		if n := len(b.router.models.all()); n != maxModels/2 {
			t.Errorf("%d models of pools alone", n)
		}
		for id := range uint64(maxModels) {
			b.send(b.publisher(5000+id, workerOwner(5000+id), 0).of(fmt.Sprint("w", id), 4).announce())
		}
		if s := b.router.Stats(); s.Workers != maxModels/2 || s.Feeds.Refused != maxModels {
			t.Errorf("%d workers, %d refused", s.Workers, s.Feeds.Refused)
		}
	})
}
