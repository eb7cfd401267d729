package selection

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestTiersAndRanks: what a worker with two ranks holds, by tokens and by hashes of blocks, in
// choices and in scores.
func TestTiersAndRanks(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		rank0, rank1 := b.Publisher(1, kv.WorkerOwner(kv.Worker{ID: 7}), 77), b.Publisher(2, kv.WorkerOwner(kv.Worker{ID: 7, Rank: 1}), 0)
		pool := b.Publisher(3, kv.PoolOwner(77), 0)
		b.Send(rank0.Announce(), rank1.Announce(), pool.Announce())
		tokens := sourcetest.Tokens(1, 2, 3, 4)
		b.Send(rank0.Store(kv.TierDevice, tokens[:8]), rank1.Store(kv.TierDevice, tokens[:4]), pool.Store(kv.TierHost, tokens[:12]), pool.Store(kv.TierDisk, tokens))
		h := New(Options{Router: b.Router}).Handler()
		const choice = `"worker_id":7,"dp_rank":0,"endpoint":"","block_size":4,"overlap":{"longest_matched":16,"gpu":8,"dp":{"0":8,"1":4},"cpu":12,"disk":16},` +
			`"effective_prefill_tokens":4,"potential_decode_blocks":4}`
		prompt := `"token_ids":` + routertest.TokensJSON(tokens)
		call(t, h, "POST", "/select", `{"model_name":"m",`+prompt+`}`, 200, choice)
		const scores = `{"block_size":4,"num_blocks":4,"workers":[` +
			`{"worker_id":7,"dp_rank":0,"device_blocks":2,"host_pinned_blocks":3,"disk_blocks":4,"host_pinned_extension_blocks":1,"disk_extension_blocks":1,"shared_beyond_device_blocks":null},` +
			`{"worker_id":7,"dp_rank":1,"device_blocks":1,"host_pinned_blocks":1,"disk_blocks":1,"host_pinned_extension_blocks":0,"disk_extension_blocks":0,"shared_beyond_device_blocks":null}],` +
			`"shared_cache":{"enabled":false,"total_hit_blocks":0,"ranges":[],"error":null}}`
		call(t, h, "POST", "/overlap_scores", `{"model_name":"m",`+prompt+`}`, 200, scores)
		q := decide.Query{Tokens: tokens}
		var locals, sequence []int64
		for _, l := range q.Locals(4, false) {
			locals = append(locals, int64(l))
		}
		sequence = signed(kv.AppendSequence(nil, q.Locals(4, false)))
		hashed, err := json.Marshal(map[string]any{"model_name": "m", "block_hashes": locals, "sequence_hashes": sequence, "isl_tokens": 16})
		if err != nil {
			t.Fatal(err)
		}
		call(t, h, "POST", "/select", string(hashed), 200, choice)
		call(t, h, "POST", "/overlap_scores", string(hashed), 200, scores)
		// A worker that hashes pairs holds other blocks.
		call(t, h, "POST", "/overlap_scores", `{"model_name":"m","is_eagle":true,`+prompt+`}`, 200, `"num_blocks":3,"workers":[{"worker_id":7,"dp_rank":0,"device_blocks":0`)
		call(t, h, "POST", "/overlap_scores", `{"model_name":"m","cache_salt":"s",`+prompt+`}`, 200, `"device_blocks":0,"host_pinned_blocks":0`)
	})
}

// TestChoicesWaitForTheirReservation: a choice is kept for its time, within its bounds, until it
// is booked; a booking that fails leaves it.
func TestChoicesWaitForTheirReservation(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		worker := b.Publisher(1, sourcetest.WorkerOwner(7), 0)
		b.Send(worker.Announce())
		h := New(Options{Router: b.Router, Cache: CacheLimits{TTL: time.Minute, Entries: 2}}).Handler()
		choose := func(id string) {
			t.Helper()
			call(t, h, "POST", "/select", fmt.Sprintf(`{"model_name":"m","selection_id":%q,"token_ids":[1,2,3,4,5]}`, id), 200, `"worker_id":7`)
		}
		reserve := func(id string, status int, want string) {
			t.Helper()
			call(t, h, "POST", "/reservations", fmt.Sprintf(`{"model_name":"m","selection_id":%q}`, id), status, want)
		}
		choose("a")
		choose("b")
		choose("c")
		reserve("a", 404, "no pending selection a") // the oldest of three
		reserve("b", 201, `{"selection_id":"b","model_name":"m","routing_group":"default","worker_id":7,"dp_rank":0,"endpoint":""}`)
		b.Pass(time.Minute + time.Second)
		b.Send(worker.Announce())
		reserve("c", 404, "expired")
		choose("d")
		b.Send(worker.Goodbye())
		reserve("d", 503, "no schedulable workers")
		again := b.Publisher(2, sourcetest.WorkerOwner(7), 0)
		b.Send(again.Announce())
		reserve("d", 201, `"worker_id":7`)
		choose("e")
		call(t, h, "POST", "/reservations", `{"model_name":"m","selection_id":"e","worker_id":8,"token_ids":[1]}`, 404, "schedulable worker 8 not found")
		reserve("e", 404, "no pending selection e") // the explicit form forgets the choice
		call(t, h, "POST", "/reservations", `{"model_name":"m","selection_id":"f","worker_id":7,"token_ids":[1,2,3,4,5],"effective_prefill_tokens":3}`, 201, `"selection_id":"f"`)
		call(t, h, "GET", "/loads?model_name=m", ``, 200, `"potential_prefill_tokens":13,"potential_decode_blocks":1,"active_requests":3`)
	})
}

// TestCacheIsBounded: by bytes, and an id has one choice.
func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(CacheLimits{Bytes: 3 * (choiceOverhead + 8*10 + 2)})
		put := func(id string) {
			c.put(&choice{key: choiceKey{partition{"m", ""}, id}, query: &decide.Query{Hashed: &decide.Hashed{Locals: make([]kv.LocalHash, 10)}}})
		}
		for _, id := range []string{"a", "b", "c", "b", "d"} {
			put(id)
		}
		for id, want := range map[string]bool{"a": false, "b": true, "c": true, "d": true} {
			if got := c.get(choiceKey{partition{"m", ""}, id}) != nil; got != want {
				t.Errorf("choice %s is kept: %t", id, got)
			}
		}
		time.Sleep(3 * time.Minute)
		if put("e"); c.order.Len() != 1 || len(c.byKey) != 1 || c.bytes != choiceOverhead+82 {
			t.Errorf("%d choices, %d names, %d bytes after their time", c.order.Len(), len(c.byKey), c.bytes)
		}
	})
}

// TestWorkersWithoutEvents: a router that follows no events predicts what registered workers
// hold, for as long as they are registered.
func TestWorkersWithoutEvents(t *testing.T) {
	o := router.Options{Config: routertest.Configured(func(c *config.Config) { c.UseKVEvents = false })}
	routertest.OnRegistryWith(t, o, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		s := New(Options{Router: b.Router, Registry: r})
		ctx, stop := context.WithCancel(b.T.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		h := s.Handler()
		call(t, h, "POST", "/workers", `{"worker_id":7,"endpoint":"http://a","block_size":4,"data_parallel_start_rank":3}`, 201, `"lifecycle":"schedulable"`)
		const prompt = `"token_ids":[1,2,3,4,5,6,7,8]`
		call(t, h, "POST", "/select_and_reserve", `{"selection_id":"a",`+prompt+`}`, 200, `"dp_rank":3,"endpoint":"http://a"`)
		call(t, h, "DELETE", "/reservations/a", ``, 200, "ok")
		call(t, h, "POST", "/select", `{"selection_id":"b",`+prompt+`}`, 200, `"dp":{"3":8}`)
		call(t, h, "POST", "/reservations", `{"selection_id":"b"}`, 201, `"dp_rank":3`)
		b.Pass(3 * registerFor)
		call(t, h, "GET", "/ready", ``, 200, `"schedulable_workers":1`)
		call(t, h, "DELETE", "/workers/7", ``, 200, `"lifecycle":"unschedulable"`)
		call(t, h, "GET", "/ready", ``, 503, `{"ready":false,"schedulable_workers":0,"workers":[]}`)
		call(t, h, "POST", "/select", `{`+prompt+`}`, 503, "no schedulable workers")
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// gone is a client that has left: its answer cannot be delivered.
type gone struct{ *httptest.ResponseRecorder }

func (gone) Write([]byte) (int, error) { return 0, http.ErrHandlerTimeout }

// TestAClientThatLeftHasNoBooking: an answer that is not delivered books nothing.
func TestAClientThatLeftHasNoBooking(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		b.Send(b.Publisher(1, sourcetest.WorkerOwner(7), 0).Announce())
		h := New(Options{Router: b.Router}).Handler()
		req := httptest.NewRequest("POST", "/select_and_reserve", strings.NewReader(`{"model_name":"m","token_ids":[1,2,3,4]}`))
		h.ServeHTTP(gone{httptest.NewRecorder()}, req)
		call(t, h, "GET", "/loads", ``, 200, `"active_requests":0`)
	})
}

// TestQueueingNeedsTheSizeOfAStep: without it nobody could tell when a worker is busy.
func TestQueueingNeedsTheSizeOfAStep(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.HalfAStep()}, func(b *routertest.Bench) {
		call(t, New(Options{Router: b.Router}).Handler(), "POST", "/workers", `{"worker_id":9,"endpoint":"http://a","block_size":4}`, 201,
			"max_num_batched_tokens is required while queueing is enabled")
	})
}

// TestStatusOfErrors: those of the router have the service's statuses, and a full queue says
// which limit is reached.
func TestStatusOfErrors(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		s := New(Options{Router: b.Router})
		for _, c := range []struct {
			err    error
			status int
			want   string
		}{
			{schedule.ErrAllOverloaded, 429, "overloaded"},
			{schedule.ErrPinnedOverloaded, 429, "overloaded"},
			{load.ErrTooManyRequests, 429, "requests"},
			{schedule.ErrAllFiltered, 503, "taints"},
			{router.ErrStarting, 503, "initial"},
			{context.Canceled, 503, "canceled"},
			{schedule.ErrPinnedNotAllowed, 400, "allowed"},
			{schedule.ErrBadSelection, 500, "selector"},
			{&queue.Rejection{Class: "default", Kind: queue.LimitRequests, Current: 5, Limit: 4}, 503,
				`"details":{"policy_class":"default","limit_kind":"requests","current":5,"limit":4}`},
		} {
			w := httptest.NewRecorder()
			s.fail(w, c.err)
			if got := w.Body.String(); w.Code != c.status || !strings.Contains(got, c.want) {
				t.Errorf("%v: %d %s; want %d %s", c.err, w.Code, got, c.status, c.want)
			}
		}
	})
}
