package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// What a request may say besides its prompt reaches the choice.
func TestRouteFieldsReachTheChoice(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		cached := `,"router_config_override":`
		for _, c := range []struct {
			more   string
			worker string
		}{
			{``, "2"},
			{`,"pinned_worker":{"worker_id":1,"dp_rank":0}`, "1"},
			{`,"allowed_worker_ids":[1]`, "1"},
			{cached + `{"overlap_score_credit":0,"prefill_load_scale":1}`, "1"},
			{cached + `{"overlap_score_weight":0}`, "1"},
			{`,"block_mm_infos":[{"mm_objects":[{"mm_hash":18446744073709551615,"offsets":[[0,2]]}]}]`, "1"},
			{`,"block_mm_infos":[null,null]`, "2"},
			{`,"lora_name":"a"`, "1"},
			{`,"cache_namespace":"a"`, "1"},
			{`,"routing_constraints":{"required_taints":[],"preferred_taints":{"gpu=h100":0.5}},"strict_priority":3,"expected_output_tokens":9`, "2"},
		} {
			r, got := b.Route(h, "r", routertest.NewBody(c.more, 1, 9))
			if r.StatusCode != http.StatusOK || !strings.Contains(got, `"worker_id":`+c.worker+`,`) {
				t.Errorf("%s: %d %s, want worker %s", c.more, r.StatusCode, got, c.worker)
			}
			if s := r.Header.Get(ScoreHeader); s != "weights" {
				t.Errorf("%s: scored by %q", c.more, s)
			}
			b.Route(h, "r", `{"method":"mark_free"}`)
		}
	})
}

// Overlap and output blocks have methods of their own; the answers name every worker,
// and whether the request was known.
func TestOverlapAndOutputBlockOverHTTP(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterTrackOutputBlocks, c.FirstOfEqual = true, true })}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		b.Route(h, "r", routertest.NewBody("", 9))
		for _, c := range []struct{ id, body, want string }{
			{"", `{"method":"overlap","tokens":` + routertest.TokensJSON(sourcetest.Tokens(1, 2, 3)) + `}`,
				`{"method":"overlap","overlaps":[{"worker_id":1,"dp_rank":0,"effective_overlap_blocks":1.5,"cached_tokens":6,"device":0,"host_pinned":2,"disk":0,"external":0},` +
					`{"worker_id":2,"dp_rank":0,"effective_overlap_blocks":1.75,"cached_tokens":7,"device":1,"host_pinned":1,"disk":0,"external":0}]}`},
			{"r", `{"method":"output_block","decay_fraction":0.5}`, `{"method":"output_block_added","success":true}`},
			{"x", `{"method":"output_block"}`, `{"method":"output_block_added","success":false}`},
			{"x", `{"method":"mark_free","request_id":"  "}`, `{"method":"free_marked","success":false,"active":false}`},
		} {
			if r, got := b.Route(h, c.id, c.body); r.StatusCode != http.StatusOK || got != c.want {
				t.Errorf("%s: %d %s, want %s", c.body, r.StatusCode, got, c.want)
			}
		}
	})
}

// Overloaded workers turn requests away with the status that is configured.
func TestOverloadHasItsStatus(t *testing.T) {
	for _, want := range []uint32{529, 503} {
		c := routertest.Configured(func(c *config.Config) {
			limit := uint64(3)
			c.ActivePrefillTokensThreshold, c.HTTPOverloadStatus = &limit, want
		})
		routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
			routertest.TwoWorkers(b)
			h := New(b.Router, Options{}).Handler()
			b.Route(h, "r1", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 50))
			r, got := b.Route(h, "r3", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 52))
			if r.StatusCode != int(want) || !strings.Contains(got, "pinned worker is overloaded") {
				t.Errorf("pinned: %d %s", r.StatusCode, got)
			}
			b.Route(h, "r2", routertest.NewBody("", 51))
			if r, got := b.Route(h, "r3", routertest.NewBody("", 52)); r.StatusCode != int(want) || !strings.Contains(got, "overloaded") {
				t.Errorf("all overloaded: %d %s, want %d", r.StatusCode, got, want)
			}
			b.Route(h, "r1", `{"method":"mark_prefill"}`)
			if r, got := b.Route(h, "r3", routertest.NewBody("", 52)); r.StatusCode != http.StatusOK {
				t.Errorf("after a prefill: %d %s", r.StatusCode, got)
			}
		})
	}
}

// A worker whose blocks are in use beyond the threshold gets nothing, from when it is known
// how many it has: from its card, or from a report of its engine.
func TestUsedBlocksCountAgainstTheCapacity(t *testing.T) {
	c := routertest.Configured(func(c *config.Config) {
		half := 0.5
		c.ActiveDecodeBlocksThreshold = &half
	})
	for name, tc := range map[string]struct {
		card, reported uint64
		want           int
	}{
		"a card":                       {10, 0, 529},
		"a report":                     {0, 10, 529},
		"a card that contradicts one":  {100, 10, http.StatusOK},
		"a card of less than reported": {10, 100, 529},
	} {
		routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
			p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
			b.Send(p.Announce())
			h := New(b.Router, Options{}).Handler()
			report := func(total uint64) source.Frame {
				return source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &kvevent.LoadReport{PublisherID: 0x11, Owner: sourcetest.WorkerOwner(1),
					Worker: kvevent.WorkerLoad{DeviceBlocksTotal: total, DeviceBlocksUsed: 9}})}
			}
			b.Send(report(0))
			b.Pass(time.Second)
			if r, got := b.Route(h, "r1", routertest.NewBody("", 1)); r.StatusCode != http.StatusOK {
				t.Errorf("%s, before it is said: %d %s", name, r.StatusCode, got)
			}
			p.Meta.Card.DeviceBlocks = tc.card
			b.Send(p.Announce(), report(tc.reported))
			b.Pass(time.Second)
			if r, got := b.Route(h, "r2", routertest.NewBody("", 1)); r.StatusCode != tc.want {
				t.Errorf("%s, nine blocks used: %d %s, want %d", name, r.StatusCode, got, tc.want)
			}
		})
	}
}

// A full queue says which of its limits was reached.
func TestQueueRejectionNamesItsLimit(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		s := newService(b.Router, nil)
		full := &queue.Rejection{Class: "default", Kind: queue.LimitTokens, Current: 9, Limit: 8}
		out := s.failed(fmt.Errorf("request %q: %w", "r", full))
		body, err := json.Marshal(out.body)
		want := `{"method":"queue_rejected","rejection":{"policy_class":"default","limit_kind":"raw_isl_tokens","current":9,"limit":8}}`
		if err != nil || out.status != 529 || string(body) != want {
			t.Errorf("%d %s, %v; want 529 %s", out.status, body, err, want)
		}
	})
}

// Nothing is routed before the workers that were asked for are there once; when one
// goes later, routing goes on.
func TestRoutingWaitsForInitialWorkers(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.Configured(func(c *config.Config) { c.MinInitialWorkers = 2 })}, func(b *routertest.Bench) {
		h := New(b.Router, Options{}).Handler()
		p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		b.Send(p1.Announce())
		if r, got := b.Route(h, "r", routertest.NewBody("", 1)); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got, "1 of 2") {
			t.Errorf("with one worker: %d %s", r.StatusCode, got)
		}
		if err := b.Router.Ready(); !errors.Is(err, router.ErrStarting) {
			t.Errorf("ready with one worker: %v", err)
		}
		b.Send(p2.Announce())
		if r, got := b.Route(h, "r", routertest.NewBody("", 1)); r.StatusCode != http.StatusOK {
			t.Errorf("with two workers: %d %s", r.StatusCode, got)
		}
		b.Send(p1.Goodbye())
		if r, got := b.Route(h, "r2", routertest.NewBody("", 1)); r.StatusCode != http.StatusOK || b.Router.Ready() != nil {
			t.Errorf("with one again: %d %s, %v", r.StatusCode, got, b.Router.Ready())
		}
	})
}

// Scoring by price says what it misses until it has measured, and then what it did.
func TestScoreHeaderNamesTheMissingMeasure(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.Configured(func(c *config.Config) { c.Score = config.ScorePrice })}, func(b *routertest.Bench) {
		p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		h := New(b.Router, Options{}).Handler()
		long := `{"method":"new","tokens":[1` + strings.Repeat(",7", 4000) + `]}`
		var last string
		for i := range 12 {
			b.Send(p1.Announce(), p2.Announce())
			id := fmt.Sprint(i)
			r, _ := b.Route(h, id, long)
			last = r.Header.Get(ScoreHeader)
			if told := routed[routeAnswer](t, h, "", strings.Replace(long, `"new"`, `"explain"`, 1)).Explanation; i == 0 && (told.Workers[0].Price != nil || told.Score != last) {
				t.Errorf("the first request is explained by %+v", told)
			}
			if i == 0 && !strings.HasPrefix(last, "weights: no prefill time") {
				t.Errorf("the first request is scored by %q", last)
			}
			b.Pass(time.Second)
			b.Route(h, id, `{"method":"mark_prefill"}`)
			b.Route(h, id, `{"method":"mark_free"}`)
		}
		if last != "price" {
			t.Errorf("the last request is scored by %q", last)
		}
		told := routed[routeAnswer](t, h, "", strings.Replace(long, `"new"`, `"explain"`, 1)).Explanation
		if told == nil || told.Score != "price" || len(told.Workers) != 2 {
			t.Fatalf("explanation %+v", told)
		}
		for _, w := range told.Workers { // the objective is balanced
			if p := w.Price; p == nil || p.Objective != "balanced" || p.TTFT <= 0 || p.TTFT < p.Wait || math.Abs(p.TTFT+p.Decode+p.Imposed-w.Cost) > 1e-9*w.Cost {
				t.Errorf("cost %v ms, of %+v", w.Cost, p)
			}
		}
		own := strings.Replace(long, `"new"`, `"explain","router_config_override":{"objective":"throughput"}`, 1)
		for _, w := range routed[routeAnswer](t, h, "", own).Explanation.Workers {
			if p := w.Price; p == nil || p.Objective != "throughput" || math.Abs(p.Machine+p.Imposed-w.Cost) > 1e-9*w.Cost {
				t.Errorf("cost %v ms by the request's objective, of %+v", w.Cost, p)
			}
		}
		got := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{`blockyard_router_decisions_by_objective_total 1`, `blockyard_router_decisions_total{score="price"}`, `blockyard_router_decisions_total{score="fallback"}`, `blockyard_router_measured_rate{measure="prefill_tokens"`} {
			if !strings.Contains(got, want) {
				t.Errorf("metrics lack %s", want)
			}
		}
		if got := routertest.Text(t, routertest.Call(t, h, "GET", "/v1/workers", "", "")); !strings.Contains(got, `"source":"measured","samples":`) {
			t.Errorf("workers %s", got)
		}
	})
}

// fixedCache is a shared cache that has the first block of everything, or fails.
type fixedCache struct{ err error }

func (f *fixedCache) CheckBlocks(context.Context, []uint32, int, string) (schedule.SharedHits, error) {
	return schedule.FromRanges([]schedule.Range{{First: 0, End: 1}}), f.err
}

// Where the time of a decision goes is there under our names and Dynamo's.
func TestOverheadMetrics(t *testing.T) {
	cache := &fixedCache{}
	routertest.OnBench(t, router.Options{SharedCache: cache, Config: routertest.Configured(func(c *config.Config) { c.SharedCacheMultiplier = 0.5 })}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		b.Route(h, "r1", routertest.NewBody("", 5, 6))
		cache.err = errors.New("away")
		b.Route(h, "r2", routertest.NewBody("", 5, 6))
		got := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{
			`overhead_block_hashing_ms_bucket{le="0.001"}`, `overhead_block_hashing_ms_bucket{le="16.384"} 2`, `overhead_seq_hashing_ms_count 2`,
			`overhead_indexer_find_matches_ms_bucket{le="0.01"}`, `overhead_indexer_find_matches_ms_bucket{le="0.03"}`, `overhead_indexer_find_matches_ms_count 2`,
			`overhead_scheduling_ms_count 2`, `overhead_total_ms_count 2`, `overhead_shared_cache_errors_total 1`,
		} {
			for _, prefix := range []string{"blockyard_router_", "dynamo_router_"} {
				if !strings.Contains(got, prefix+want) {
					t.Errorf("metrics lack %s%s", prefix, want)
				}
			}
		}
		for _, want := range []string{"shared_cache_hit_rate_sum 0.5", "shared_cache_beyond_blocks_sum 1", "shared_cache_beyond_blocks_count 1"} {
			for _, prefix := range []string{"blockyard_router_", "dynamo_component_router_"} {
				if !strings.Contains(got, prefix+want) {
					t.Errorf("metrics lack %s%s", prefix, want)
				}
			}
		}
	})
}
