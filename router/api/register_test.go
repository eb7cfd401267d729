package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestRegistrationOverHTTP: the calls, their answers, and what the router shows.
func TestRegistrationOverHTTP(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		h := New(b.Router, Options{Registration: true}).Handler()
		const body = `{"worker_id":5,"model":"m","block_size":4,"pool":77,"endpoint":"http://e:1","device_blocks":100,"ttl_seconds":20}`
		for _, c := range []struct {
			method, path, body string
			status             int
			want               string
		}{
			{"POST", "/v1/workers", body, 200, `{"worker_id":5,"ranks":1,"expires_in_seconds":20}`},
			{"POST", "/v1/workers", strings.Replace(body, `"worker_id":5`, `"worker_id":6`, 1), 200, `{"worker_id":6,"ranks":1,"expires_in_seconds":20}`},
			{"POST", "/v1/workers", strings.Replace(body, `"block_size":4`, `"block_size":0`, 1), 400, "block_size"},
			{"POST", "/v1/workers", strings.Replace(body, `"ttl_seconds":20`, `"ttl_seconds":4000`, 1), 400, "ttl_seconds"},
			{"POST", "/v1/workers", `{"colour":1}`, 400, "colour"},
			{"POST", "/v1/workers", body + body, 400, "something follows"},
			{"POST", "/v1/workers", `{"model":"` + strings.Repeat("x", maxRegistrationBody) + `"}`, 413, "body"},
			{"DELETE", "/v1/workers?worker_id=6", "", 200, `{"worker_id":6}`},
			{"DELETE", "/v1/workers?worker_id=6", "", 404, "worker_id"},
			{"DELETE", "/v1/workers", "", 400, "worker_id"},
			{"GET", "/v1/agents", "", 200, "[]"},
		} {
			answer := routertest.Call(t, h, c.method, c.path, "", c.body)
			if got := routertest.Text(t, answer); answer.StatusCode != c.status || !strings.Contains(got, c.want) {
				t.Errorf("%s %s %.80s: %d %s, want %d %s", c.method, c.path, c.body, answer.StatusCode, got, c.status, c.want)
			}
			synctest.Wait()
		}
		pool := kvevent.LoadReport{PublisherID: 3, Owner: kv.PoolOwner(77), Pool: kvevent.PoolLoad{ReadQueue: 4}}
		worker := kvevent.LoadReport{PublisherID: 4, Owner: sourcetest.WorkerOwner(5), Worker: kvevent.WorkerLoad{Running: 2}}
		b.Send(source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &pool)}, source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &worker)},
			source.Frame{Kind: source.FrameLoad, Data: []byte("nonsense")})
		b.Pass(3 * time.Second)
		var got []workerAnswer
		if err := json.Unmarshal([]byte(routertest.Text(t, routertest.Call(t, h, "GET", "/v1/workers", "", ""))), &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Source != "http" || !got[0].Silent || got[0].Endpoint != "http://e:1" || got[0].DeviceBlocks != 100 ||
			got[0].Load == nil || got[0].Load.Running != 2 || got[0].Load.AgeSeconds != 3 || got[0].PoolLoad == nil || got[0].PoolLoad.ReadQueue != 4 {
			t.Errorf("workers %+v", got)
		}
		shown := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{
			`blockyard_router_load{kind="read_queue",owner="pool 77"} 4`, `blockyard_router_load{kind="running_requests",owner="worker 5/0"} 2`,
			`blockyard_router_load_age_seconds{owner="pool 77"} 3`, `blockyard_router_load_reports_undecodable_total 1`,
			`blockyard_router_registered_over_http 1`, `blockyard_router_registrations_refused_total 2`,
		} {
			if !strings.Contains(shown, want+"\n") {
				t.Errorf("metrics lack %q", want)
			}
		}
		b.Pass(time.Minute)
		if len(b.Router.Loads()) != 0 {
			t.Error("loads of a minute ago are still shown")
		}
	})
}

// TestWithoutARegistryNobodyRegisters: the calls are not there.
func TestWithoutARegistryNobodyRegisters(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		for _, h := range []http.Handler{New(b.Router, Options{Registration: true}).Handler(), New(b.Router, Options{}).ControlHandler()} {
			if r := routertest.Call(t, h, "POST", "/v1/workers", "", "{}"); r.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("status %d", r.StatusCode)
			}
		}
	})
}
