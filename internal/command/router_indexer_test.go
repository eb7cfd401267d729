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

// TestIndexerPortServesTheIndexer: an engine registers there and is followed; without the flag
// nothing listens.
func TestIndexerPortServesTheIndexer(t *testing.T) {
	withoutSettings(t)
	t.Setenv("NATS_SERVER", "")
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	c := settle(t, "--indexer-port", fmt.Sprint(port))
	sources, err := c.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer sources.Close()
	r, err := router.New(c.options(zap.NewNop()), sources.Source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	off := settle(t)
	if err := off.openServices(ctx, g, r, sources, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	if _, err := http.Get(url + "/health"); err == nil { //nolint:bodyclose // there is no answer
		t.Error("a router without --indexer-port listens")
	}
	if err := c.openServices(ctx, g, r, sources, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	body := `{"instance_id":7,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}`
	answer, err := http.Post(url+"/register", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.Body.Close() != nil || answer.StatusCode != http.StatusCreated {
		t.Errorf("register: %d %s %v", answer.StatusCode, text, err)
	}
	if n := sources.engines.Counters().Engines; n != 1 {
		t.Errorf("%d engines are followed", n)
	}
	taken := settle(t, "--indexer-port", fmt.Sprint(port))
	if err := taken.openServices(ctx, g, r, sources, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--indexer-port") {
		t.Errorf("a port that is in use: %v", err)
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
