package command

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/router"
)

// TestServicePortsServeDynamosServices: an engine registers at each and is followed; without
// the flags nothing listens.
func TestServicePortsServeDynamosServices(t *testing.T) {
	withoutSettings(t)
	t.Setenv("NATS_SERVER", "")
	port, selection := freePort(t), freePort(t)
	c := settle(t, "--indexer-port", port, "--selection-port", selection)
	sources, err := c.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer sources.Close()
	r, err := router.New(c.options("", zap.NewNop()), sources.Source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	off := settle(t)
	if err := off.openServices(ctx, g, r, sources, nil, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	url := "http://127.0.0.1:" + port
	if _, err := http.Get(url + "/health"); err == nil { //nolint:bodyclose // there is no answer
		t.Error("a router without --indexer-port listens")
	}
	if err := c.openServices(ctx, g, r, sources, nil, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	for to, body := range map[string]string{
		url + "/register": `{"instance_id":7,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}`,
		"http://127.0.0.1:" + selection + "/workers": `{"worker_id":8,"endpoint":"http://a","kv_events_endpoint":"tcp://127.0.0.1:1","block_size":16}`,
	} {
		answer, err := http.Post(to, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.Body.Close() != nil || answer.StatusCode != http.StatusCreated {
			t.Errorf("%s: %d %s %v", to, answer.StatusCode, text, err)
		}
	}
	if n := sources.engines.Counters().Engines; n != 2 {
		t.Errorf("%d engines are followed", n)
	}
	taken := settle(t, "--indexer-port", port)
	if err := taken.openServices(ctx, g, r, sources, nil, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--indexer-port") {
		t.Errorf("a port that is in use: %v", err)
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return fmt.Sprint(free.Addr().(*net.TCPAddr).Port)
}
