package zmq_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/zmq"
)

// A worker is announced before its engine is there, as degraded. Unfollow ends it.
func ExampleSource() {
	s, err := zmq.New(zmq.Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	err = s.Follow(source.Engine{Worker: 7, Model: "m", BlockSize: 16, Ranks: []source.EngineRank{
		{Events: "tcp://192.0.2.1:5557", Replay: "tcp://192.0.2.1:5558"},
	}})
	if err != nil {
		panic(err)
	}
	var last kvevent.Health
	for f := range s.Frames() {
		a, err := kvevent.DecodeAnnouncement(f.Data)
		if err != nil {
			panic(err)
		}
		if a.Health == last {
			continue
		}
		fmt.Println(a.Owner, "serves", a.Model, "and is", a.Health)
		if last = a.Health; last == kvevent.HealthGone {
			break
		}
		s.Unfollow(7)
	}
	// Output:
	// worker 7/0 serves m and is degraded
	// worker 7/0 serves m and is gone
}
