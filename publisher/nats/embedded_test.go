package nats

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestEmbeddedServerIsForThisMachineAndWantsItsToken(t *testing.T) {
	a, b := startServer(t, EmbeddedOptions{}), startServer(t, EmbeddedOptions{})
	token, address, ok := strings.Cut(strings.TrimPrefix(a.URL(), "nats://"), "@")
	if !ok || len(token) != 32 || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Errorf("url %q", a.URL())
	}
	if strings.Contains(b.URL(), token) {
		t.Error("two servers have one token")
	}
	a.Close()
	a.Close()
}

func TestEmbeddedServerNamesABadPort(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	if _, err := StartEmbedded(EmbeddedOptions{Port: serverPort(t, srv)}); err == nil {
		t.Error("a port in use was taken")
	}
	if _, err := StartEmbedded(EmbeddedOptions{Port: 70000}); err == nil || !strings.Contains(err.Error(), "70000") {
		t.Errorf("bad port: %v", err)
	}
}

// TestEmbeddedServerRefusesClientsBeyondItsLimit: whoever reaches the port, with the token
// or without, takes no more file descriptors than the server may use.
func TestEmbeddedServerRefusesClientsBeyondItsLimit(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{MaxConnections: 1})
	dial := func() error {
		nc, err := nats.Connect(srv.URL())
		if err == nil {
			t.Cleanup(nc.Close)
		}
		return err
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	if err := dial(); err == nil {
		t.Error("a second client is connected, the limit is 1")
	}
}
