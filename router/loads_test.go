package router_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A prompt whose client has vanished is no load of a worker whose engine says that it has
// no requests.
func TestEnginesSayWhichPrefillsAreGone(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		b.Route(h, "r", routertest.NewBody("", 1, 2, 3))
		prefill := func() int {
			loads, err := b.PotentialLoads(&router.Request{Tokens: sourcetest.Tokens(9)})
			if err != nil {
				t.Fatal(err)
			}
			return loads[0].PrefillTokens - sourcetest.BlockSize
		}
		report := func(l kvevent.WorkerLoad) {
			for range 10 {
				r := kvevent.LoadReport{PublisherID: 11, Owner: sourcetest.WorkerOwner(1), Worker: l}
				b.Send(source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &r)}, p.Announce())
				b.Pass(time.Second)
			}
		}
		booked := prefill()
		report(kvevent.WorkerLoad{}) // of an engine that does not tell
		report(kvevent.WorkerLoad{DeviceBlocksTotal: 100, Waiting: 1})
		if got := prefill(); booked == 0 || got != booked {
			t.Errorf("%d tokens are pending, want %d", got, booked)
		}
		report(kvevent.WorkerLoad{DeviceBlocksTotal: 100})
		if got := prefill(); got != 0 {
			t.Errorf("%d tokens are pending on an engine without requests", got)
		}
		if got := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", "")); !strings.Contains(got, "blockyard_router_requests_phantom_total 1\n") {
			t.Error("metrics do not show the phantom")
		}
	})
}

// The booked load of a worker is a metric of Dynamo's names, with the kind of worker as a
// label.
func TestBookedLoadIsAMetricWithTheWorkersType(t *testing.T) {
	settings := config.Default()
	settings.WorkerType = config.WorkerPrefill
	routertest.OnBench(t, router.Options{Config: &settings}, func(b *routertest.Bench) {
		b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		b.Route(h, "r", routertest.NewBody("", 1, 2, 3))
		got := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", ""))
		labels := `{dp_rank="0",worker_id="1",worker_type="prefill"} `
		for _, line := range []string{
			"dynamo_frontend_worker_active_decode_blocks" + labels + "3\n",
			"dynamo_frontend_worker_active_prefill_tokens" + labels + strconv.Itoa(3*sourcetest.BlockSize) + "\n",
		} {
			if !strings.Contains(got, line) {
				t.Errorf("the scrape lacks %s", line)
			}
		}
	})
}
