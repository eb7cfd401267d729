package api

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
)

// Both listeners serve the console. With tokens the page is open, because it has no data, and
// everything else is not.
func TestConsoleIsServed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("anna 0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := control.ReadTokens(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		a := New(b.Router, Options{Tokens: tokens, Version: "1.2"})
		for _, c := range []struct {
			name   string
			h      http.Handler
			path   string
			status int
			want   string
		}{
			{"http", a.Handler(), "/", http.StatusFound, ""},
			{"http", a.Handler(), "/console/", http.StatusOK, "<title>Blockyard</title>"},
			{"http", a.Handler(), "/v1/decisions", http.StatusOK, "[]"},
			{"control", a.ControlHandler(), "/", http.StatusFound, ""},
			{"control", a.ControlHandler(), "/console/", http.StatusOK, "<title>Blockyard</title>"},
			{"control", a.ControlHandler(), "/console/about.json", http.StatusOK, `{"kind":"router","version":"1.2"}`},
			{"control", a.ControlHandler(), "/v1/decisions", http.StatusUnauthorized, "Authorization"},
			{"control", a.ControlHandler(), "/v1/history", http.StatusUnauthorized, "Authorization"},
		} {
			w := httptest.NewRecorder()
			c.h.ServeHTTP(w, httptest.NewRequestWithContext(b.T.Context(), http.MethodGet, "http://127.0.0.1"+c.path, nil))
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
				b.T.Errorf("%s %s: status %d, %.200s; want %d", c.name, c.path, w.Code, w.Body, c.status)
			}
		}
	})
}
