package command

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// TestRouterControlSocket: operators register workers and dump at the socket that
// --control names, and inspect takes its path.
func TestRouterControlSocket(t *testing.T) {
	registry, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	r, err := router.New(router.Options{}, registry)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, _, err := (&Router{Control: socket}).listenControl(nil, r.Metrics(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := (&Router{Control: socket}).listenControl(nil, r.Metrics(), zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--control") {
		t.Errorf("a socket in use: %v, %v", again, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return api.New(r, api.Options{}).ServeControl(ctx, l) })
	defer func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	client, base, err := control.Client(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for path, body := range map[string]string{"/v1/workers": `{"worker_id":5,"model":"m","block_size":4}`, "/v1/dump": ""} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		q, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %s", method, path, answer.Status)
		}
	}
	var out bytes.Buffer
	if status := Product("").Run(t.Context(), []string{"inspect", socket}, &out, &out); status != 0 || !strings.Contains(out.String(), "WORKER") {
		t.Errorf("inspect: status %d\n%s", status, out.String())
	}
}

// TestRouterStartsWithoutTheDefaultControlSocket: a router whose default socket cannot
// be made serves all the same.
func TestRouterStartsWithoutTheDefaultControlSocket(t *testing.T) {
	// Longer than the path of a socket may be, so that no directory can have it.
	t.Setenv("XDG_RUNTIME_DIR", "/"+strings.Repeat("x", 200))
	address := control.DefaultPath("router-1")
	if !strings.Contains(address, "xxx") {
		t.Skip("root has one directory for its sockets")
	}
	http, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer http.Close()
	if l, _, err := (&Router{}).listenControl(http, nil, zap.NewNop()); l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}
