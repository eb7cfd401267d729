package dynamo

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// openRecoverable opens a plane whose recovery server listens on this machine.
func openRecoverable(t *testing.T) (*Plane, *Source, *fakeStream) {
	t.Helper()
	o := testOptions(t)
	o.Recovery = "127.0.0.1:0"
	p := openPlane(t, o, &fakeConn{})
	f := newFakeStream()
	f.store(kv.TierDevice, 1, 2, 3)
	f.store(kv.TierHost, 4)
	return p, addSource(t, p, f), f
}

// everything is a query for a dump.
func everything() kvevent.DynamoQuery {
	return kvevent.DynamoQuery{Worker: testWorker, KnowsDumpFailed: true, Kind: kvevent.DynamoRecovery}
}

// within waits for a condition.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	waittest.Until(t, what, ok)
}

func TestARouterRecoversOverTCP(t *testing.T) {
	p, s, f := openRecoverable(t)
	var record sourceRecord
	if err := json.Unmarshal([]byte(readFile(t, s.record)), &record); err != nil {
		t.Fatal(err)
	}
	address, path, _ := strings.Cut(record.Metadata.Recovery.Transport.TCP, "/")
	if path != s.queryPath || !s.recoverable {
		t.Errorf("path %s, want %s", path, s.queryPath)
	}
	c := newCaller(t, address)
	r := c.ask(s, everything())
	if r.Kind != kvevent.QueryTreeDump || len(r.Events) != 4 || r.LastEventID != 0 {
		t.Fatalf("%+v", r)
	}
	f.remove(kv.TierDevice, 3)
	within(t, "event 1", func() bool { return s.Stats().Events == 1 })
	q := everything()
	q.QueryRequest = kvevent.QueryRequest{StartID: 1, HasStart: true}
	if r := c.ask(s, q); r.Kind != kvevent.QueryEvents || len(r.Events) != 1 || r.Events[0].Kind != kvevent.Removed {
		t.Errorf("%+v", r)
	}
	if refusal := c.call(requestFrame("nobody", nil, nil)); refusal != "Unknown endpoint: nobody" {
		t.Error(refusal)
	}
	s.Close()
	if refusal := c.call(requestFrame(s.queryPath, nil, nil)); refusal != "Unknown endpoint: "+s.queryPath {
		t.Error(refusal)
	}
	got := p.Stats()
	// The plane's own check at the start does not count.
	if got.Connections != 1 || got.UnknownPaths != 2 || got.ReplyErrors != 0 || s.Stats().Queries != 2 || s.Stats().Dumps != 1 {
		t.Errorf("%+v %+v", got, s.Stats())
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestManyRoutersRecoverAtOnce: all of them are answered, no more than a few at a
// time, and while events go on.
func TestManyRoutersRecoverAtOnce(t *testing.T) {
	p, s, f := openRecoverable(t)
	var all sync.WaitGroup
	for range 20 {
		c := newCaller(t, p.address)
		request := requestFrame(s.queryPath, requestHead(t, c.back.Addr().String()), kvevent.AppendDynamoQuery(nil, new(everything())))
		all.Go(func() {
			for refused := true; refused; {
				switch refusal := c.call(request); refusal {
				case "":
					refused = false
				case "Server overloaded":
				default:
					t.Error(refusal)
					return
				}
			}
			r, err := c.answer()
			if err != nil || r.Kind != kvevent.QueryTreeDump {
				t.Error(r, err)
			}
		})
	}
	for i := range 1000 {
		f.store(kv.TierDisk, kv.SequenceHash(i))
	}
	all.Wait()
	if got := s.Stats(); got.Queries != 20 || got.Dumps > 20 {
		t.Errorf("%+v", got)
	}
}

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	p, s, _ := openRecoverable(t)
	good := kvevent.AppendDynamoQuery(nil, new(everything()))
	head := string(requestHead(t, "127.0.0.1:1"))
	for name, tc := range map[string]struct {
		head, body, want string
	}{
		"another host":        {string(requestHead(t, "192.0.2.7:80")), string(good), "requester's address 127.0.0.1"},
		"a name":              {string(requestHead(t, "localhost:80")), string(good), "IP address"},
		"port 0":              {string(requestHead(t, "127.0.0.1:0")), string(good), "requester's address"},
		"a JSON body":         {strings.Replace(head, `"msgpack"`, `"json"`, 1), "{}", "payload codec"},
		"another transport":   {strings.Replace(head, "tcp_server", "nats", 1), string(good), "response transport"},
		"another stream":      {strings.Replace(head, `\"response\"`, `\"request\"`, 1), string(good), "stream type"},
		"no head":             {"", string(good), "head"},
		"no connection info":  {`{"payload_codec":"msgpack"}`, string(good), "connection info"},
		"a body that is none": {head, "\xc1", "recovery query"},
	} {
		c := newCaller(t, p.address)
		refusal := c.call(requestFrame(s.queryPath, []byte(tc.head), []byte(tc.body)))
		if !strings.Contains(refusal, tc.want) {
			t.Errorf("%s: %q", name, refusal)
		}
	}
	if got := p.Stats(); got.DialBacksRefused != 3 || got.BadRequests != 6 || s.Stats().Queries != 0 {
		t.Errorf("%+v", got)
	}
}

func TestBrokenFramesEndTheirConnection(t *testing.T) {
	p, s, _ := openRecoverable(t)
	for name, b := range map[string][]byte{
		"a path too long":    {0xff, 0xff},
		"headers too long":   {0, 1, 'x', 0xff, 0xff},
		"a payload too long": {0, 1, 'x', 0, 0, 0xff, 0xff, 0xff, 0xff},
	} {
		c := newCaller(t, p.address)
		if _, err := c.conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if n, err := c.conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: the connection lives", name)
		}
	}
	if p.Stats().BadRequests != 3 {
		t.Errorf("%+v", p.Stats())
	}
	if r := newCaller(t, p.address).ask(s, everything()); r.Kind != kvevent.QueryTreeDump {
		t.Errorf("%+v", r)
	}
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	p, _, _ := openRecoverable(t)
	within(t, "the end of the check", func() bool {
		p.recovery.mu.Lock()
		defer p.recovery.mu.Unlock()
		return p.recovery.open == 0
	})
	for range maxPeerConnections {
		newCaller(t, p.address).call(requestFrame("x", nil, nil))
	}
	c := newCaller(t, p.address)
	if _, err := c.conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one too many of a peer: %v", err)
	}
	// Another peer has room, up to the limit of all.
	for i := range maxConnections - maxPeerConnections + 1 {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		conn, err := from.DialContext(t.Context(), "tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write(requestFrame("x", nil, nil))
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); (err != nil) != (i == maxConnections-maxPeerConnections) {
			t.Errorf("connection %d of another peer: %v", i, err)
		}
	}
	if p.Stats().ConnectionsRefused != 2 {
		t.Errorf("%+v", p.Stats())
	}
}

// TestARecoveryServerThatCannotBeReachedIsNotAdvertised: routers would wait 25 s for
// it, while the source without it is served at once.
func TestARecoveryServerThatCannotBeReachedIsNotAdvertised(t *testing.T) {
	somebody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if c, err := somebody.Accept(); err == nil {
			_, _ = c.Write([]byte("\x00\x00\x00\x04what"))
			_, _ = io.CopyN(io.Discard, c, 1)
			_ = c.Close()
		}
	}()
	o := testOptions(t)
	o.Recovery, o.Advertise = "127.0.0.1:0", somebody.Addr().String()
	p := openPlane(t, o, &fakeConn{})
	<-served
	_ = somebody.Close()
	s := addSource(t, p, newFakeStream())
	if s.recoverable || strings.Contains(readFile(t, s.record), "recovery_target") {
		t.Error("an address of somebody else is advertised")
	}
	o.Recovery, o.Advertise = p.opt.Advertise, ""
	taken, err := net.Listen("tcp", o.Recovery)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := Open(t.Context(), o, &fakeConn{}); err == nil {
		t.Error("an address in use was listened on")
	}
}

// TestAnswersToNobodyAreCounted: the address of the answer does not accept.
func TestAnswersToNobodyAreCounted(t *testing.T) {
	p, s, _ := openRecoverable(t)
	c := newCaller(t, p.address)
	address := c.back.Addr().String()
	if err := c.back.Close(); err != nil {
		t.Fatal(err)
	}
	request := requestFrame(s.queryPath, requestHead(t, address), kvevent.AppendDynamoQuery(nil, new(everything())))
	if refusal := c.call(request); refusal != "" {
		t.Fatal(refusal)
	}
	within(t, "the failed answer", func() bool { return p.Stats().ReplyErrors == 1 })
}
