package nats

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// StartDurableServer starts a server with JetStream.
func StartDurableServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	return sourcetest.StartServer(t, func(o *server.Options) { o.JetStream, o.StoreDir = true, dir }).ClientURL()
}

func ConnectDurable(t *testing.T, url string) *Source {
	t.Helper()
	n, err := Connect(Options{URL: url, JetStream: true})
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
