package agent_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/servertls"
)

// control asks the agent's listener for operators.
func (a *testAgent) control(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	client, base, err := control.Client(a.ControlAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	r, err := http.NewRequest(method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func post(t *testing.T, a *testAgent, path, body string) (int, string) {
	t.Helper()
	return a.control(t, http.MethodPost, path, body)
}

// keep keeps the blocks of a prompt, and returns the answer.
func (a *testAgent) keep(t *testing.T, namespace string, tokens []uint32, salt string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"namespace": namespace, "tokens": tokens, "salt": salt, "ttl_seconds": 600})
	if err != nil {
		t.Fatal(err)
	}
	_, answer := post(t, a, "/v1/keep", string(body))
	return strings.TrimSpace(answer)
}

// dump is GET /v1/pools.
func (a *testAgent) dump(t *testing.T) string {
	t.Helper()
	_, body := a.control(t, http.MethodGet, "/v1/pools", "")
	return body
}

// TestOperatorsHaveAListenerOfTheirOwn: the port that routers and metrics use does not
// serve what empties, keeps or lists blocks; the listener that does is by default a
// socket for the agent's own user, and no browser uses it for a page of another site.
func TestOperatorsHaveAListenerOfTheirOwn(t *testing.T) {
	cfg := testConfig(t)
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	for _, path := range []string{"/v1/reset", "/v1/reset-blocks", "/v1/keep"} {
		resp, err := http.Post("http://"+a.AdminAddr()+path, "application/json", strings.NewReader(`{"tier":"all"}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("POST %s at the port of metrics: status %d, want 404", path, resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if status, _ := get(t, a, "/v1/pools"); status != http.StatusNotFound {
		t.Errorf("GET /v1/pools at the port of metrics: status %d, want 404", status)
	}
	if got := a.ControlAddr(); got != cfg.Socket+".control" {
		t.Errorf("control address %s, want the socket's path with .control behind it", got)
	}
	if info, err := os.Stat(a.ControlAddr()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, error %v: want mode 0600", info.Mode(), err)
	}
	if status, body := a.control(t, http.MethodGet, "/v1/pools", ""); status != http.StatusOK || !strings.Contains(body, `"blocks":[{`) {
		t.Errorf("GET /v1/pools for operators: status %d, %s", status, body)
	}
}

func testNamespaceID() string {
	ns := agenttest.Namespace()
	return ns.ID().String()
}

// TestBlocksOfALongSaltAreKept: a client names the salt as its requests do, and the
// connector has stored the blocks under the salt's hash.
func TestBlocksOfALongSaltAreKept(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	salt := strings.Repeat("tenant", 1000)
	r := proto.RequestID{ID: 1}
	agenttest.NoError(t, c.Open(r, "", "", kv.BoundedName(salt), agenttest.Prompt(1, 3)))
	agenttest.NoError(t, c.Commit(t.Context(), r, agenttest.Grant(t, c, r, 0, 3)))
	if kept := a.keep(t, testNamespaceID(), agenttest.Prompt(1, 3), salt); kept != `{"kept":3,"blocks":3}` {
		t.Errorf("got %s; want all three blocks kept", kept)
	}
}

// TestABadCertificateEndsTheStart: the error names the file.
func TestABadCertificateEndsTheStart(t *testing.T) {
	cfg := testConfig(t)
	cfg.Control, cfg.ControlTLS = "127.0.0.1:0", servertls.Files{Cert: "/none.pem", Key: "/none.key"}
	if _, err := agent.New(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("error %v, want one that names none.pem", err)
	}
}
