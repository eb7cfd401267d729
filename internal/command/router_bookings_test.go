package command

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/replica"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// peerAccount lends an account to a replica.State.
type peerAccount struct{ *load.Account }

func (a peerAccount) WithAccount(f func(a *load.Account) (released kv.Worker, ok bool)) { f(a.Account) }

// peerOf returns the state of another router that hears all messages about a model. No bookings expire
// there, because nobody calls Tick.
func peerOf(t *testing.T, url, cluster string, m replica.Model) *replica.State {
	t.Helper()
	account, err := load.New(load.Options{})
	if err != nil {
		t.Fatal(err)
	}
	peer := replica.NewState(cluster, 11)
	peer.Open(m)
	peer.Join(m, peerAccount{account})
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Subscribe("blockyard."+cluster+".replica.*.*", func(m *nats.Msg) { peer.Receive(m.Data, time.Now()) }); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return peer
}

// TestBookingsAreSharedUntilTheServersHaveDrained: a router that stops says goodbye to the others when its
// last request has ended.
func TestBookingsAreSharedUntilTheServersHaveDrained(t *testing.T) {
	withoutSettings(t)
	url := sourcetest.StartServer(t).ClientURL()
	c := settle(t, "--nats="+url, "--router-replica-sync")
	n, err := natssource.Connect(natssource.Options{URL: url, Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close() //nolint:errcheck // nothing is sent any more
	o := c.options("", zap.NewNop())
	o.Replicas = n
	r, err := router.New(o, n)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	draining, drained, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- runAround(ctx, r, func(ctx context.Context, servers *errgroup.Group) error {
			servers.Go(func() error {
				<-ctx.Done()
				close(draining)
				<-drained
				return nil
			})
			return nil
		})
	}()
	worker := sourcetest.NewWirePublisher(t, url, "c", sourcetest.NewPublisher(7, sourcetest.WorkerOwner(7), 0))
	sourcetest.Eventually(t, "a worker", func() bool {
		worker.SendAnnouncement("c")
		return len(r.Workers()) > 0
	})
	key := r.Models("")[0].Key()
	peer := peerOf(t, url, "c", replica.Model{Name: key.Name, BlockSize: key.BlockSize})
	sourcetest.Eventually(t, "the router at its peer", func() bool { return peer.Stats().Routers == 1 })
	stop()
	<-draining
	heard := peer.Stats().Received
	sourcetest.Eventually(t, "two more states of the router that drains", func() bool {
		if peer.Stats().Routers != 1 {
			t.Fatal("the router has said goodbye before its requests ended")
		}
		return peer.Stats().Received >= heard+2
	})
	close(drained)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	sourcetest.Eventually(t, "the goodbye", func() bool { return peer.Stats().Routers == 0 })
}
