package admin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/admin"
	"github.com/blockyard-ai/blockyard/internal/control"
)

func TestUnknownPathsAndMethodsAreRefusedInJSON(t *testing.T) {
	n := openNode(t)
	for _, c := range []struct {
		handler      http.Handler
		method, path string
		code         int
		want         string
	}{
		{n.public, http.MethodGet, "/v2/pools", http.StatusNotFound, "/v2/pools"},
		{n.public, http.MethodPost, "/v1/reset", http.StatusNotFound, "/v1/reset"},
		{n.public, http.MethodGet, "/v1/pools", http.StatusNotFound, "/v1/pools"},
		{n.control, http.MethodGet, "/v1/reset", http.StatusMethodNotAllowed, "want POST"},
		{n.control, http.MethodPost, "/v1/pools", http.StatusMethodNotAllowed, "GET"},
	} {
		code, body := ask(t, c.handler, c.method, c.path, "{}")
		wantError(t, code, body, c.code, c.want)
	}
}

// TestPublicReads: health does not depend on readiness, and the statistics are those of
// Public.Stats.
func TestPublicReads(t *testing.T) {
	n := openNode(t)
	for _, c := range []struct {
		ready bool
		path  string
		code  int
		want  string
	}{
		{false, "/healthz", http.StatusOK, "ok"},
		{false, "/readyz", http.StatusServiceUnavailable, "not ready"},
		{true, "/readyz", http.StatusOK, "ready"},
		{true, "/v1/stats", http.StatusOK, `{"sessions":3}`},
		{true, "/v1/status", http.StatusOK, "[]"},
	} {
		n.ready = c.ready
		if code, body := ask(t, n.public, http.MethodGet, c.path, ""); code != c.code || body != c.want {
			t.Errorf("%s, ready %t: status %d, %q; want %d, %q", c.path, c.ready, code, body, c.code, c.want)
		}
	}
}

// TestConsoleIsServed: both listeners serve the web console and what it reads. With tokens the
// operators' listener serves the page without one, and the rest is refused.
func TestConsoleIsServed(t *testing.T) {
	n := openNode(t)
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("anna 0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := control.ReadTokens(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	guarded := n.describe().Control(control.Operators{Tokens: tokens})
	for _, c := range []struct {
		name string
		h    http.Handler
		data int
	}{{"public", n.public, http.StatusOK}, {"control", n.control, http.StatusOK}, {"control with tokens", guarded, http.StatusUnauthorized}} {
		if code, body := ask(t, c.h, http.MethodGet, "/console/about.json", ""); code != http.StatusOK || body != `{"kind":"agent","version":"1.2"}` {
			t.Errorf("%s: status %d, %s", c.name, code, body)
		}
		if code, _ := ask(t, c.h, http.MethodGet, "/", ""); code != http.StatusFound {
			t.Errorf("%s: the root has status %d", c.name, code)
		}
		for _, path := range []string{"/v1/stats", "/v1/history"} {
			if code, body := ask(t, c.h, http.MethodGet, path, ""); code != c.data {
				t.Errorf("%s %s: status %d, want %d: %s", c.name, path, code, c.data, body)
			}
		}
	}
}

// TestDumpOfSeveralPoolsIsOneListOfJSON: the dump has every block with the file and the offset
// of its bytes in each tier.
func TestDumpOfSeveralPoolsIsOneListOfJSON(t *testing.T) {
	n := openNode(t)
	var want []string
	for pools := range 3 {
		var list []struct {
			Namespace string
			Blocks    []struct {
				Hash       string
				Tiers      []string
				Host, Disk struct{ Path string }
			}
		}
		code, body := ask(t, n.control, http.MethodGet, "/v1/pools", "")
		if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK || len(list) != pools {
			t.Fatalf("with %d pools: status %d, error %v, %s", pools, code, err, body)
		}
		var got []string
		for _, p := range list {
			for _, b := range p.Blocks {
				got = append(got, p.Namespace+" "+b.Hash)
				if !slices.Equal(b.Tiers, []string{"host_pinned", "disk"}) {
					t.Errorf("block %s is in %v, want both tiers", b.Hash, b.Tiers)
				}
				for _, path := range []string{b.Host.Path, b.Disk.Path} {
					if _, err := os.Stat(path); err != nil {
						t.Errorf("block %s: %v", b.Hash, err)
					}
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got blocks %q, want %q", got, want)
		}
		p := n.fill(t, fmt.Sprint(pools), 2)
		for _, b := range p.blocks {
			want = append(want, fmt.Sprintf("%s %016x", p.NamespaceID(), uint64(b.Seq)))
		}
		slices.Sort(want)
	}
}

// TestServerServesUntilClose: Serve returns nil after Close, which also closes the listener.
func TestServerServesUntilClose(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := admin.NewServer(l, openNode(t).public, zap.NewNop())
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.Addr() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || strings.TrimSpace(string(body)) != "ok" {
		t.Errorf("got %q, error %v", body, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve returned %v after Close, want nil", err)
	}
	if _, err := client.Get("http://" + s.Addr() + "/healthz"); err == nil {
		t.Error("a closed server answers")
	}
}

// TestServerThatNeverServedCloses: an agent that fails to start closes the listener of a server
// that nobody has served.
func TestServerThatNeverServedCloses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := admin.NewServer(l, http.NotFoundHandler(), zap.NewNop())
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	again, err := net.Listen("tcp", s.Addr())
	if err != nil {
		t.Fatalf("the address is still in use: %v", err)
	}
	again.Close()
}
