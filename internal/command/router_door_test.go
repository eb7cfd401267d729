package command

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/lab/golden"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// doorParts returns the router and the directory of servers that the front door of c needs.
func doorParts(t *testing.T, c *Router) (*router.Router, *workers.Directory) {
	t.Helper()
	joined, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = joined.Close() })
	r, err := router.New(c.options("", zap.NewNop()), joined)
	if err != nil {
		t.Fatal(err)
	}
	servers, err := c.directory(r, &routerSources{Source: joined}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	return r, servers
}

// The flags open a front door that forwards to the named server, and closes with the
// router.
func TestOpenDoor(t *testing.T) {
	withoutSettings(t)
	c := settle(t, "--http-port=0", "--http-host=127.0.0.1", "--worker="+plainServer(t, new(atomic.Bool)))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	r, servers := doorParts(t, c)
	door, err := c.openDoor(ctx, r, servers, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 3)
	go func() { ended <- r.Run(ctx) }()
	go func() { ended <- servers.Run(ctx) }()
	go func() { ended <- door.serve(ctx) }()
	const body = `{"prompt":[1,2,3]}`
	ask := func() (int, string) {
		resp, err := http.Post("http://"+door.clients.Addr().String()+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(got)
	}
	var status int
	var got string
	waittest.Until(t, "a worker is known", func() bool { status, got = ask(); return status != http.StatusServiceUnavailable })
	if status != http.StatusOK || got != body {
		t.Errorf("status %d, %s", status, got)
	}
	checkTokenize(t, door, r)
	scraped := httptest.NewRecorder()
	r.Metrics().Handler().ServeHTTP(scraped, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"blockyard_frontend_workers_ready 1", "blockyard_frontend_prompts_given_total"} {
		if !strings.Contains(scraped.Body.String(), want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	end()
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// checkTokenize asks a door, whose server makes no tokens of texts, for the tokens of requests.
func checkTokenize(t *testing.T, door *openDoor, r *router.Router) {
	t.Helper()
	tokenize := door.tokenize(r)
	for body, want := range map[string]string{
		`{"prompt":[1,2,3]}`:                    `{"tiny" [1 2 3] true ""} <nil>`,
		`{"model":"other","prompt":[1]}`:        `{"other" [1] true ""} <nil>`,
		`{"prompt":"a text"}`:                   `{"tiny" [] false "no server tokenizes this prompt"} <nil>`,
		`{"messages":[{"role":"user"}],"n":-1}`: `{"" [] false ""} n: `,
		`[`:                                     `{"" [] false ""} body: `,
	} {
		got, err := tokenize(t.Context(), []byte(body))
		if text := fmt.Sprintf("{%q %v %t %q} %v", got.Model, got.Tokens, got.Exact, got.Reason, err); !strings.HasPrefix(text, want) {
			t.Errorf("%s: %s, want %s", body, text, want)
		}
	}
	if (*openDoor)(nil).tokenize(r) != nil {
		t.Error("a router without a door makes tokens of texts")
	}
}

// Without a port and without servers the door stays closed.
func TestDoorStaysClosed(t *testing.T) {
	withoutSettings(t)
	c := settle(t)
	if door, err := c.openDoor(t.Context(), nil, nil, zap.NewNop()); door != nil || err != nil {
		t.Errorf("door %v, error %v", door, err)
	}
}

// --ext-proc alone opens the listener for gateways, and none for clients.
func TestExtProc(t *testing.T) {
	withoutSettings(t)
	c := settle(t, "--ext-proc=127.0.0.1:0")
	ctx, end := context.WithCancel(t.Context())
	r, servers := doorParts(t, c)
	door, err := c.openDoor(ctx, r, servers, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ready := make(map[string]any)
	door.addresses(ready)
	if _, clients := ready["door"]; clients || ready["ext_proc"] == nil {
		t.Errorf("ready line %v, want ext_proc alone", ready)
	}
	end()
	if err := door.serve(ctx); err != nil {
		t.Error(err)
	}
}

// A certificate of --ext-proc that cannot be read is an error that names the flag.
func TestExtProcCertificate(t *testing.T) {
	withoutSettings(t)
	missing := t.TempDir() + "/none.pem"
	c := settle(t, "--ext-proc=127.0.0.1:0", "--ext-proc-tls-cert="+missing, "--ext-proc-tls-key="+missing)
	r, servers := doorParts(t, c)
	if _, err := c.openDoor(t.Context(), r, servers, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--ext-proc-tls-cert") {
		t.Errorf("error %v, want --ext-proc-tls-cert", err)
	}
}

// TestGoldenDoorMetrics: the front door's metric families keep their names, types, labels and help.
func TestGoldenDoorMetrics(t *testing.T) {
	withoutSettings(t)
	c := settle(t, "--http-port=0", "--http-host=127.0.0.1")
	ctx, end := context.WithCancel(t.Context())
	r, servers := doorParts(t, c)
	door, err := c.openDoor(ctx, r, servers, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	m := r.Metrics().Door
	m.Answered("completions", "m", http.StatusOK)
	m.FirstToken("m", "7/0", time.Second)
	m.Gap("m", "7/0")(time.Second)
	m.Ended("m", "7/0", time.Second, 1)
	m.Phase("m", "decision", time.Second)
	m.Retried("m", "7/0", "died")
	m.Split("yard")
	m.Prompt("exact")
	m.Cached("m", "7/0", 3, 2, 1)
	m.Differ("m", "7/0", -1, miss.Evicted)
	m.Missed("m", "7/0", miss.Evicted, 2)
	scraped := httptest.NewRecorder()
	r.Metrics().Handler().ServeHTTP(scraped, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var doors strings.Builder
	for line := range strings.Lines(scraped.Body.String()) {
		if strings.Contains(line, "blockyard_frontend_") {
			doors.WriteString(line)
		}
	}
	lintMetrics(t, "door", scraped.Body.String())
	golden.Compare(t, "door-metrics.txt", families(t, doors.String()))
	end()
	if err := door.serve(ctx); err != nil {
		t.Error(err)
	}
}
