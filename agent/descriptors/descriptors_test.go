package descriptors

import (
	"errors"
	"net"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// TestDescriptorsAreDivided: connections and event streams share what the agent does not
// need itself, and neither takes the other's part.
func TestDescriptorsAreDivided(t *testing.T) {
	open := 100
	d := &Budget{limit: 400, own: 200, open: func() (int, error) { return open, nil }}
	if got := d.Connections(); got != 50 {
		t.Errorf("%d connections, want half of 200 in pairs", got)
	}
	if err := errors.Join(d.Reserve(0), d.Reserve(64), d.Reserve(36)); err != nil {
		t.Error(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if r := new(refusal.Error); !errors.As(err, &r) || r.Code != proto.CodeLimit || !r.Retryable {
			t.Errorf("%s: got error %v, want a refusal for now", what, err)
		}
	}
	refused("one too many", d.Reserve(1))
	d.Release(64)
	open = 380
	refused("others have taken the spare ones", d.Reserve(10))
	open = 300
	if err := d.Reserve(64); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ limit, want int }{{64, 1}, {1 << 20, maxConnections}} {
		if got := (&Budget{limit: c.limit, own: 70}).Connections(); got != c.want {
			t.Errorf("limit %d: %d connections, want %d", c.limit, got, c.want)
		}
	}
}

// TestAgentKeepsDescriptorsForTheServersInsideIt: the clients of the embedded NATS server and
// of every HTTP listener are bounded, and connections and event streams do without theirs.
func TestAgentKeepsDescriptorsForTheServersInsideIt(t *testing.T) {
	const limit = 1024
	own := func(n Needs) int {
		own, _ := n.own(limit, 40)
		return own
	}
	plain := own(Needs{Listeners: 2})
	if got := own(Needs{Listeners: 2, NATS: true}); got != plain+128 {
		t.Errorf("own is %d with a NATS server and %d without, want 128 more", got, plain)
	}
	if got := own(Needs{Listeners: 3}); got != plain+64 {
		t.Errorf("own is %d with one listener more and %d without, want 64 more", got, plain)
	}
	for _, c := range []struct{ limit, want int }{{16, 4}, {1024, 128}, {1 << 20, maxNATSConnections}} {
		if got := NATSConnections(c.limit); got != c.want {
			t.Errorf("limit %d: %d clients of NATS, want %d", c.limit, got, c.want)
		}
	}
}

// TestLimitThatIsTooLowIsNamed: at a limit where the extents of full tiers would take what
// engines and libzmq need, the log asks for a higher one.
func TestLimitThatIsTooLowIsNamed(t *testing.T) {
	for _, c := range []struct {
		limit   int
		extents int
		low     bool
	}{{1024, 100, false}, {1024, 2000, true}, {64, 0, true}} {
		d, needs := &Budget{limit: c.limit, rank: 40}, Needs{Listeners: 2, Extents: c.extents}
		d.own, d.without = needs.own(c.limit, 40)
		if got := d.wanted(); got > c.limit != c.low {
			t.Errorf("limit %d, %d extents: %d are wanted, want more than the limit: %t", c.limit, c.extents, got, c.low)
		}
	}
}

// TestLimitedListenerWaitsForAnEnd: a connection more than there may be waits until
// another one is closed, and Close ends the wait.
func TestLimitedListenerWaitsForAnEnd(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := LimitListener(inner, 1)
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
