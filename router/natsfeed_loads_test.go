package router

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestLoadsComeOverNATS: reports of the own cluster are taken, through a registry that
// joins them with the events.
func TestLoadsComeOverNATS(t *testing.T) {
	url := startServer(t).ClientURL()
	n, err := ConnectNATS(NATSOptions{URL: url, Cluster: "prod"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	loads, err := FollowLoads(n)
	if err != nil {
		t.Fatal(err)
	}
	defer loads.Close()
	g, err := NewRegistry(RegistryOptions{}, n, loads)
	if err != nil {
		t.Fatal(err)
	}
	r := runRouter(t, Options{}, g)
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p := newWirePublisher(t, url, "prod", newTestPublisher(11, workerOwner(1), 0))
	p.add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
	report := func(cluster string, running uint64) {
		b := kvevent.AppendLoadReport(nil, &kvevent.LoadReport{PublisherID: 11, Owner: workerOwner(1), Worker: kvevent.WorkerLoad{Running: running}})
		if err := conn.Publish(kvevent.LoadSubject(cluster, 11), b); err != nil {
			t.Error(err)
		}
	}
	report("staging", 9)
	report("prod", 4)
	eventually(t, "the load is known and the events are too", func() bool {
		p.sendAnnouncement("prod")
		return r.Loads()[workerOwner(1)].Worker.Running == 4 && deviceHits(r, promptTokens(1)) == 1
	})
	if s := r.Stats(); s.Loads.Taken != 1 || s.Loads.Undecodable != 0 {
		t.Errorf("stats %+v", s.Loads)
	}
}
