package frontend_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/tenant"
)

// openKeys opens a keys file. Each line is a key and the members of its object.
func openKeys(t *testing.T, lines ...[2]string) *tenant.Keys {
	t.Helper()
	var text strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&text, "{\"sha256\":\"%x\",%s}\n", sha256.Sum256([]byte(l[0])), l[1])
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := tenant.Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// bearer returns the header with a key.
func bearer(key string) []string { return []string{"Authorization", "Bearer " + key} }

// A request without a known key is answered 401 in the shape of its API, and reaches no
// worker. Keys reach no worker either.
func TestKeys(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{Keys: openKeys(t, [2]string{"k", `"tenant":"a"`})}, s)
	for _, path := range []string{"/v1/chat/completions", "/detokenize", "/v1/responses/x/cancel"} {
		for _, headers := range [][]string{nil, bearer("x")} {
			resp, body := b.post(path, `{"messages":[]}`, headers...)
			if _, code := errorOf(t, body); resp.StatusCode != 401 || code != "invalid_api_key" || resp.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %v: status %d, code %s", path, headers, resp.StatusCode, code)
			}
		}
	}
	resp, body := b.post("/v1/messages", `{}`, "x-api-key", "x")
	var e struct {
		Type  string
		Error struct{ Type string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || resp.StatusCode != 401 || e.Type != "error" || e.Error.Type != "authentication_error" {
		t.Errorf("messages: status %d, %s", resp.StatusCode, body)
	}
	for path, want := range map[string]int{"/v1/models": 401, "/health": 200} {
		resp, err := http.Get(b.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a key: status %d, want %d", path, resp.StatusCode, want)
		}
	}
	if got := s.got(); len(got) != 0 {
		t.Errorf("the worker got %q", got)
	}
	for _, headers := range [][]string{bearer("k"), {"x-api-key", "k"}} {
		if resp, body := b.post("/v1/completions", `{"prompt":[1]}`, headers...); resp.StatusCode != 200 {
			t.Errorf("%v: status %d, %s", headers, resp.StatusCode, body)
		}
	}
	for _, h := range s.header {
		if h.Get("Authorization") != "" || h.Get("X-Api-Key") != "" {
			t.Errorf("the worker got the headers %v", h)
		}
	}
	b.expectIdle()
}

// Rights of a key: what others may not set reaches the worker.
func TestRights(t *testing.T) {
	s, other := newServer(t, 7, answers(200, `{}`)), newServer(t, 8, answers(200, `{}`))
	b := newBench(t, frontend.Options{Keys: openKeys(t,
		[2]string{"plain", `"tenant":"a"`}, [2]string{"full", `"tenant":"b","allow":["pin","rank","kv_transfer_params"]`})}, s, other)
	for _, c := range []struct {
		body    string
		headers []string
		field   string
	}{
		{`{"prompt":[1],"kv_transfer_params":{"a":1}}`, nil, "kv_transfer_params"},
		{`{"prompt":[1]}`, []string{frontend.WorkerPinHeader, "7/0"}, frontend.WorkerPinHeader},
		{`{"prompt":[1]}`, []string{frontend.WorkerPinHeader, "7", "X-data-parallel-rank", "0"}, "X-Data-Parallel-Rank"},
	} {
		resp, body := b.post("/v1/completions", c.body, append(bearer("plain"), c.headers...)...)
		if message, _ := errorOf(t, body); resp.StatusCode != 400 || !strings.Contains(message, c.field) {
			t.Errorf("%s: status %d, %q; want 400 for %s", c.body, resp.StatusCode, message, c.field)
		}
		resp, body = b.post("/v1/completions", c.body, append(bearer("full"), c.headers...)...)
		if resp.StatusCode != 200 || len(c.headers) > 0 && resp.Header.Get(frontend.WorkerHeader) != "7/0" {
			t.Errorf("%s: status %d, worker %s, %s", c.body, resp.StatusCode, resp.Header.Get(frontend.WorkerHeader), body)
		}
	}
	resp, body := b.post("/v1/completions", `{"prompt":[1]}`, append(bearer("full"), "X-data-parallel-rank", "0")...)
	if message, _ := errorOf(t, body); resp.StatusCode != 400 || !strings.Contains(message, frontend.WorkerPinHeader) {
		t.Errorf("a rank without a worker: status %d, %s", resp.StatusCode, message)
	}
}

// The salt of a tenant reaches the worker with the client's own, and nobody takes another's.
func TestTenantSalt(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{Pass: []string{"/v1/rerank"}, Keys: openKeys(t,
		[2]string{"a", `"tenant":"a","salt":true`}, [2]string{"b", `"tenant":"b"`})}, s)
	for _, c := range []struct{ key, path, body, want string }{
		{"a", "/v1/completions", `{"prompt":[1]}`, `{"prompt":[1],"cache_salt":"blockyard-tenant:a:"}`},
		{"a", "/v1/completions", `{"cache_salt":"own","prompt":[1]}`, `{"cache_salt":"blockyard-tenant:a:own","prompt":[1]}`},
		{"a", "/v1/messages", `{"messages":[],"max_tokens":1}`, `{"messages":[],"max_tokens":1,"cache_salt":"blockyard-tenant:a:"}`},
		{"a", "/v1/rerank", `{"query":"q","cache_salt":"o"}`, `{"query":"q","cache_salt":"blockyard-tenant:a:o"}`},
		{"a", "/v1/rerank", `text`, `text`},
		{"a", "/tokenize", `{"prompt":"text"}`, `{"prompt":"text"}`},
		{"b", "/v1/completions", `{"prompt":[1], "cache_salt":"a:"}`, `{"prompt":[1], "cache_salt":"a:"}`},
	} {
		resp, body := b.post(c.path, c.body, bearer(c.key)...)
		if got := s.got(); resp.StatusCode != 200 || got[len(got)-1] != c.want {
			t.Errorf("%s %s: status %d, %s, the worker got %q, want %q", c.path, c.body, resp.StatusCode, body, got, c.want)
		}
	}
	for _, path := range []string{"/v1/completions", "/v1/rerank"} {
		resp, body := b.post(path, `{"prompt":[1],"cache_salt":"blockyard-tenant:a:"}`, bearer("b")...)
		if message, _ := errorOf(t, body); resp.StatusCode != 400 || !strings.Contains(message, "cache_salt") {
			t.Errorf("%s with the salt of another tenant: status %d, %q", path, resp.StatusCode, message)
		}
	}
}

// Tenants with salts decide apart: what one has sent earns the other no credit. Tenants without
// salts share.
func TestTenantsDecideApart(t *testing.T) {
	b := newBench(t, frontend.Options{Keys: openKeys(t,
		[2]string{"a", `"tenant":"a","salt":true`}, [2]string{"b", `"tenant":"b","salt":true`},
		[2]string{"c", `"tenant":"c"`}, [2]string{"d", `"tenant":"d"`})}, newServer(t, 7, answers(200, `{}`)))
	for _, c := range []struct{ key, predicted string }{
		{"a", "0"}, {"a", "8"}, {"b", "0"}, {"b", "8"}, {"c", "0"}, {"d", "8"}, {"a", "8"},
	} {
		resp, body := b.post("/v1/completions", `{"prompt":[1,2,3,4,5,6,7,8,9]}`, bearer(c.key)...)
		if got := resp.Header.Get(frontend.PredictedHeader); resp.StatusCode != 200 || got != c.predicted {
			t.Errorf("tenant %s: status %d, %s cached tokens predicted, want %s: %s", c.key, resp.StatusCode, got, c.predicted, body)
		}
	}
}

// A stored response belongs to the tenant that made it, also for a tenant that may pin workers
// or that chose the id of its own response.
func TestResponseOfAnotherTenant(t *testing.T) {
	s := newServer(t, 7, answers(200, `{"id":"r1","usage":{"input_tokens":3,"output_tokens":1}}`))
	b := newBench(t, frontend.Options{Keys: openKeys(t, [2]string{"a", `"tenant":"a"`}, [2]string{"b", `"tenant":"b","allow":["pin"]`})}, s)
	for _, key := range []string{"a", "b"} { // both get the id r1
		b.post("/v1/responses", `{"input":"hello"}`, bearer(key)...)
	}
	const more = `{"input":"more","previous_response_id":"r1"}`
	for key, want := range map[string]int{"a": 200, "b": 404} {
		for path, body := range map[string]string{"/v1/responses/r1/cancel": "", "/v1/responses": more} {
			if resp, text := b.post(path, body, bearer(key)...); resp.StatusCode != want {
				t.Errorf("%s %s: status %d, want %d: %s", key, path, resp.StatusCode, want, text)
			}
		}
	}
	if resp, text := b.post("/v1/responses", more, append(bearer("b"), frontend.WorkerPinHeader, "7/0")...); resp.StatusCode != 404 {
		t.Errorf("at a pinned worker: status %d, want 404: %s", resp.StatusCode, text)
	}
}

// A browser's request for a page of another site changes nothing, whatever its content type.
func TestCrossSite(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{TrustedOrigins: []string{"https://chat.example"}}, s)
	host := strings.TrimPrefix(b.url, "http://")
	for _, c := range []struct {
		headers []string
		status  int
	}{
		{[]string{"Origin", "https://evil.example", "Content-Type", "application/json"}, 403},
		{[]string{"Origin", "https://evil.example", "Content-Type", "text/plain"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{[]string{"Sec-Fetch-Site", "same-site"}, 403},
		{[]string{"Origin", "http://" + host}, 200},
		{[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://" + host}, 200},
		{[]string{"Origin", "https://chat.example", "Sec-Fetch-Site", "cross-site"}, 200},
		{nil, 200},
	} {
		resp, body := b.post("/v1/completions", `{"prompt":[1]}`, c.headers...)
		if resp.StatusCode != c.status {
			t.Errorf("%v: status %d, want %d: %s", c.headers, resp.StatusCode, c.status, body)
		}
		if c.status != http.StatusForbidden {
			continue
		}
		if _, code := errorOf(t, body); code != "cross_site" {
			t.Errorf("%v: %s", c.headers, body)
		}
	}
	if got := s.got(); len(got) != 4 {
		t.Errorf("the worker got %d requests, want 4", len(got))
	}
	if _, err := frontend.New(frontend.Options{Router: b.router, Workers: b.directory, Tokens: prompts{}, TrustedOrigins: []string{"chat.example"}}); err == nil ||
		!strings.Contains(err.Error(), "trusted origins[0]") {
		t.Errorf("an origin without a scheme: %v", err)
	}
}
