package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// TestDescriptorsAreDivided: connections and event streams share what the agent does not
// need itself, and neither takes the other's part.
func TestDescriptorsAreDivided(t *testing.T) {
	open := 100
	d := &descriptors{limit: 400, own: 200, open: func() (int, error) { return open, nil }}
	if got := d.connections(); got != 50 {
		t.Errorf("%d connections, want half of 200 in pairs", got)
	}
	if err := errors.Join(d.reserve(0), d.reserve(64), d.reserve(36)); err != nil {
		t.Error(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if r := refusalOf(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable {
			t.Errorf("%s: got error %v, want a refusal for now", what, err)
		}
	}
	refused("one too many", d.reserve(1))
	d.release(64)
	open = 380
	refused("others have taken the spare ones", d.reserve(10))
	open = 300
	if err := d.reserve(64); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ limit, want int }{{64, 1}, {1 << 20, maxConnections}} {
		if got := (&descriptors{limit: c.limit, own: 70}).connections(); got != c.want {
			t.Errorf("limit %d: %d connections, want %d", c.limit, got, c.want)
		}
	}
}

// TestAgentKeepsDescriptorsForTheServersInsideIt: the clients of the embedded NATS server and
// of every HTTP listener are bounded, and connections and event streams do without theirs.
func TestAgentKeepsDescriptorsForTheServersInsideIt(t *testing.T) {
	const limit = 1024
	own := func(c Config) int {
		n, _ := ownDescriptors(&c, limit, 40)
		return n
	}
	plain := own(Config{})
	if got := own(Config{Events: EventOptions{Embedded: &nats.EmbeddedOptions{}}}); got != plain+128 {
		t.Errorf("own is %d with a NATS server and %d without, want 128 more", got, plain)
	}
	if got := own(Config{KVBM: KVBMOptions{Metrics: "127.0.0.1:0"}}); got != plain+64 {
		t.Errorf("own is %d with one listener more and %d without, want 64 more", got, plain)
	}
	for _, c := range []struct{ limit, want int }{{16, 4}, {1024, 128}, {1 << 20, maxNATSConnections}} {
		if got := natsConnections(c.limit); got != c.want {
			t.Errorf("limit %d: %d clients of NATS, want %d", c.limit, got, c.want)
		}
	}
}

// TestLimitThatIsTooLowIsNamed: at a limit where the extents of full tiers would take what
// engines and libzmq need, the log asks for a higher one.
func TestLimitThatIsTooLowIsNamed(t *testing.T) {
	for _, c := range []struct {
		limit   int
		extents uint64
		low     bool
	}{{1024, 100, false}, {1024, 2000, true}, {64, 0, true}} {
		d := &descriptors{limit: c.limit}
		d.own, d.without = ownDescriptors(&Config{HostBytes: c.extents << 20, ExtentBytes: 1 << 20}, c.limit, 40)
		if got := d.wanted(); got > c.limit != c.low {
			t.Errorf("limit %d, %d extents: %d are wanted, want more than the limit: %t", c.limit, c.extents, got, c.low)
		}
	}
}

// TestEventStreamsTakeWhatIsReservedForThem: what a session with every stream opens is not
// more than what was reserved for it.
func TestEventStreamsTakeWhatIsReservedForThem(t *testing.T) {
	engine, events := newFakePublisher(t)
	a := startAgent(t, testConfig(t))
	a.scheduler(t, 2) // what the first session of a namespace opens
	hello := helloOf(1)
	hello.EventsEndpoint, hello.ReplayEndpoint = events, fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	before, err := openDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.dialWith(t, hello); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the engine's events come", func() bool {
		engine.stored(77, prompt(1, 1))
		return a.Stats().Totals.Ranks.Batches > 0
	})
	after, err := openDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	a.server.files.mu.Lock()
	reserved := a.server.files.streams
	a.server.files.mu.Unlock()
	t.Logf("%d descriptors more, both ends of the connections included; %d reserved", after-before, reserved)
	if reserved != eventDescriptors+outputDescriptors || after-before > reserved {
		t.Errorf("%d descriptors more, %d are reserved", after-before, reserved)
	}
}

// TestAgentSurvivesAFloodOfConnections: an agent with few file descriptors is connected to
// far more often than these allow, while engines whose events need descriptors say hello.
// It refuses what it has no room for and serves the others, during the flood and after.
func TestAgentSurvivesAFloodOfConnections(t *testing.T) {
	_, events := newFakePublisher(t)
	t.Setenv(filesVariable, "240")
	a := startAgentChild(t, testConfig(t))
	first := a.client.scheduler(t, 1)
	var flood []*proto.Conn
	defer func() {
		for _, c := range flood {
			c.Close()
		}
	}()
	for range 300 {
		c, err := proto.Dial(t.Context(), a.client.cfg.Socket)
		if err != nil {
			break // the socket's queue is full
		}
		flood = append(flood, c)
	}
	storePrompt(t, first, proto.RequestID{ID: 1}, 1, 2)
	served := 0
	for i, c := range flood { // descriptors come back one by one, each with a HELLO at the edge
		c.Close()
		if i%4 != 0 {
			continue
		}
		hello := helloOf(uint64(100 + i))
		hello.EventsEndpoint = events
		hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		engine, err := proto.DialScheduler(ctx, proto.ClientOptions{Socket: a.client.cfg.Socket, Hello: hello})
		cancel()
		if err == nil {
			served++
			defer engine.Close()
		}
	}
	storePrompt(t, first, proto.RequestID{ID: 2}, 2, 2)
	t.Logf("%d connections, %d engines with events were served meanwhile", len(flood), served)
	first.Close()
	late := helloOf(1)
	eventually(t, "the engine comes back after the flood", func() bool {
		c, err := a.client.dialWith(t, late)
		if err == nil {
			storePrompt(t, c, proto.RequestID{ID: 1}, 3, 2)
		}
		return err == nil
	})
}

// TestFloodOfTheOperatorsPortLeavesEnginesTheirStreams: whoever reaches the port of
// operators connects far more often than the agent has file descriptors. An engine whose
// events need some is served all the same.
func TestFloodOfTheOperatorsPortLeavesEnginesTheirStreams(t *testing.T) {
	_, events := newFakePublisher(t)
	t.Setenv(filesVariable, "240")
	cfg := testConfig(t)
	cfg.Control = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	a := startAgentChild(t, cfg)
	for range 300 {
		c, err := net.DialTimeout("tcp", cfg.Control, 100*time.Millisecond)
		if err != nil {
			break // the port's queue is full
		}
		defer c.Close()
	}
	hello := helloOf(1)
	hello.EventsEndpoint = events
	ctx, cancel := context.WithTimeout(t.Context(), adminReadTimeout/2) // then the port lets go by itself
	defer cancel()
	c, err := proto.DialScheduler(ctx, proto.ClientOptions{Socket: a.client.cfg.Socket, Hello: hello})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestLimitedListenerWaitsForAnEnd: a connection more than there may be waits until
// another one is closed, and Close ends the wait.
func TestLimitedListenerWaitsForAnEnd(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitListener(inner, 1)
	accepted, ended := make(chan net.Conn), make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	one := <-accepted
	select {
	case <-accepted:
		t.Error("a second connection is accepted beside the first")
	default:
	}
	one.Close()
	one.Close()
	two := <-accepted
	defer two.Close()
	l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ended with %v", err)
	}
}
