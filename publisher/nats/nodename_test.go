package nats

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestTwoNodesOfOneNameAreRefused: the second one does not start, says which name and who
// has it, and the first one goes on; another cluster has its own names, and the name is
// free when its holder has ended.
func TestTwoNodesOfOneNameAreRefused(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	connect := func(node, cluster string) (*Conn, error) {
		return Connect(t.Context(), Options{URL: srv.URL(), Node: node, Cluster: cluster})
	}
	first, err := connect("node a", "")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := connect("node a", ""); err == nil {
		second.Close()
		t.Fatal("two nodes of one name")
	} else if text := err.Error(); !strings.Contains(text, `node "node a"`) || !strings.Contains(text, "process ") {
		t.Errorf("error %q names neither the node nor who has its name", text)
	}
	if got := first.Stats(); got.NameClaims != 1 || !got.Connected {
		t.Errorf("stats %+v, want one claim of another", got)
	}
	for _, other := range [][2]string{{"node b", ""}, {"node a", "staging"}, {"", ""}, {"", ""}} {
		n, err := connect(other[0], other[1])
		if err != nil {
			t.Errorf("node %q of cluster %q: %v", other[0], other[1], err)
			continue
		}
		defer n.Close()
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := connect("node a", "")
	if err != nil {
		t.Fatalf("after its holder ended: %v", err)
	}
	again.Close()
}

// TestAHolderThatDoesNotAnswerHasNoName: the subscription of a host that is gone stays with
// the server for minutes.
func TestAHolderThatDoesNotAnswerHasNoName(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	conn, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asked := make(chan *nats.Msg, 1)
	if _, err := conn.ChanSubscribe(kvevent.NodeSubject("default", "a"), asked); err != nil {
		t.Fatal(err)
	}
	if err := conn.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	n, err := Connect(t.Context(), Options{URL: srv.URL(), Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if claim, err := kvevent.DecodeNodeClaim((<-asked).Data); err != nil || claim.Node != "a" || claim.PID == 0 {
		t.Errorf("asked with %+v: %v", claim, err)
	}
}

// quietAfter is the address of a proxy of a server. Once a client has sent text, the
// client hears nothing from the server any more.
func quietAfter(t *testing.T, server, text string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	running.Go(func() {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		up, err := net.Dial("tcp", server)
		if err != nil {
			t.Error(err)
			return
		}
		quiet := &quietWriter{Writer: client}
		running.Go(func() { _, _ = io.Copy(quiet, up) })
		defer up.Close()
		buf, sent := make([]byte, 4096), []byte(nil)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			if sent = append(sent, buf[:n]...); bytes.Contains(sent, []byte(text)) {
				quiet.begin()
			}
			if _, err := up.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	return listener.Addr().String()
}

// quietWriter drops what is written once begin was called.
type quietWriter struct {
	io.Writer
	mu    sync.Mutex
	quiet bool
}

func (w *quietWriter) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quiet = true
}

func (w *quietWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet {
		return len(b), nil
	}
	return w.Writer.Write(b)
}

// TestASlowServerDoesNotKeepAnAgentFromStarting: the claim of the name may arrive late.
func TestASlowServerDoesNotKeepAnAgentFromStarting(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	at, err := url.Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	at.Host = quietAfter(t, at.Host, "SUB "+kvevent.NodeSubject("default", "a"))
	n, err := Connect(t.Context(), Options{URL: at.String(), Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
}
