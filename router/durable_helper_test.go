package router

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// startDurableServer starts a server with JetStream.
func startDurableServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	return startServer(t, func(o *server.Options) { o.JetStream, o.StoreDir = true, dir }).ClientURL()
}

func connectDurable(t *testing.T, url string) *NATS {
	t.Helper()
	n, err := ConnectNATS(NATSOptions{URL: url, JetStream: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
