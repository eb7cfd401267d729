package upgrade

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// settleLimit bounds the wait until a router's index equals what engines and agents hold.
const settleLimit = 2 * time.Minute

// newBrokerBed returns a bed whose agents and routers have a NATS server, the cluster that starts such servers, and the
// running one.
func newBrokerBed(t *testing.T) (*bed, *cluster.Cluster, *cluster.Process) {
	t.Helper()
	program := filepath.Join(os.Getenv("BLOCKYARD_BIN"), "nats-server")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("no NATS server: make test-ops builds it: %v", err)
	}
	dirs := newDirs(t)
	broker := cluster.New(cluster.Options{Dirs: dirs, Name: "broker", NATSServer: program})
	t.Cleanup(func() { broker.Close(20 * time.Second) })
	server, err := broker.StartNATS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return newBedAt(t, dirs, broker.NATSURL()), broker, server
}

// same waits until a router's index equals what the engine and the agent's pool hold, with every event accounted for.
func (b *bed) same(r *cluster.Router, a *cluster.Agent, e *cluster.Engine) {
	b.t.Helper()
	s, err := cluster.Parts{Agents: []*cluster.Agent{a}, Engines: []cluster.Endpoint{e.Endpoint}, Router: r}.Settle(b.ctx, settleLimit)
	b.ok(err)
	if s.Moving != "" || len(s.Inexact) > 0 || s.Diff.Diverged() > 0 {
		b.t.Fatalf("%s: moving %q, inexact %q, %d residencies lost, %d phantom: %s", r.Endpoint.Name, s.Moving, s.Inexact,
			s.Diff.Lost, s.Diff.Phantom, strings.Join(s.Diff.First, "; "))
	}
	if least := prompts * promptBlocks; s.Diff.Compared < least {
		b.t.Errorf("%s: %d residencies were compared, want %d or more", r.Endpoint.Name, s.Diff.Compared, least)
	}
}

// TestEventsOverNATS: a router follows an agent of the other version over a NATS server, in both directions. It has
// exactly the blocks that engine and pool hold: after live events (blocks stored, evicted, cleared), after the server
// was away, and in a router that starts late and asks for what it missed. A version that changes a kind of event
// changes this test too.
func TestEventsOverNATS(t *testing.T) {
	for _, from := range []version{previous, this} {
		to := map[version]version{previous: this, this: previous}[from]
		t.Run(fmt.Sprintf("agent %s router %s", from, to), func(t *testing.T) {
			b, broker, server := newBrokerBed(t)
			router := func(name string) *cluster.Router {
				r, err := b.runs[to].StartNamedRouter(b.ctx, name)
				b.ok(err)
				return r
			}
			early := router("early")
			a := b.agent(from, "n1")
			e := b.engine(from, 7, a)
			b.store(e, a, prompts)
			b.same(early, a, e)

			var cleared struct{}
			b.ok(e.Post(b.ctx, "/v1/reset_prefix_cache", nil, &cleared))
			if got := b.found(e, prompts); got != prompts*promptBlocks {
				t.Errorf("%d blocks came from the agent, want %d", got, prompts*promptBlocks)
			}
			b.same(early, a, e)

			if !server.Kill() {
				t.Fatal("the NATS server had ended")
			}
			for k := range prompts {
				_, err := generate(b.ctx, e, prompts+k)
				b.ok(err)
			}
			_, err := broker.StartNATS(b.ctx)
			b.ok(err)
			b.same(early, a, e)
			b.same(router("late"), a, e)
		})
	}
}
