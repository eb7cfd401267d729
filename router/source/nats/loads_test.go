package nats_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestLoadsComeOverNATS: reports of the own cluster are taken, through a registry that
// joins them with the events.
func TestLoadsComeOverNATS(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	n, err := natssource.Connect(natssource.Options{URL: url, Cluster: "prod"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	loads, err := natssource.FollowLoads(n)
	if err != nil {
		t.Fatal(err)
	}
	defer loads.Close()
	g, err := registry.New(registry.Options{}, n, loads)
	if err != nil {
		t.Fatal(err)
	}
	r := routertest.RunRouter(t, router.Options{}, g)
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := sourcetest.NewWirePublisher(t, url, "prod", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1), 0)
	report := func(cluster string, running uint64) {
		b := kvevent.AppendLoadReport(nil, &kvevent.LoadReport{PublisherID: 11, Owner: sourcetest.WorkerOwner(1), Worker: kvevent.WorkerLoad{Running: running}})
		if err := conn.Publish(kvevent.LoadSubject(cluster, 11), b); err != nil {
			t.Error(err)
		}
	}
	report("staging", 9)
	report("prod", 4)
	sourcetest.Eventually(t, "the load is known and the events are too", func() bool {
		p.SendAnnouncement("prod")
		return r.Loads()[sourcetest.WorkerOwner(1)].Worker.Running == 4 && routertest.DeviceHits(r, sourcetest.Tokens(1)) == 1
	})
	if s := r.Stats(); s.Loads.Taken != 1 || s.Loads.Undecodable != 0 {
		t.Errorf("stats %+v", s.Loads)
	}
}
