package agent_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
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

func TestBrowserCannotResetForAnotherSite(t *testing.T) {
	cfg := testConfig(t)
	cfg.Control = "127.0.0.1:0"
	a := startAgent(t, cfg)
	r, err := http.NewRequest(http.MethodPost, "http://"+a.ControlAddr()+"/v1/reset", strings.NewReader(`{"tier":"all"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Origin", "http://elsewhere.example")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d, want 403", resp.StatusCode)
	}
}

// filledAgent is an agent with n blocks of prompt 1 in both tiers, and the engine
// that stored them.
func filledAgent(t *testing.T, n int) (*testAgent, *proto.SchedulerClient) {
	t.Helper()
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, n)
	agenttest.Eventually(t, "the agent is quiet", func() bool { return a.Stats().Quiet })
	return a, c
}

// status is what GET /v1/status says of the only pool.
func (a *testAgent) status(t *testing.T) map[string]blockmgr.TierStatus {
	t.Helper()
	var pools []struct {
		Tiers map[string]blockmgr.TierStatus
	}
	if _, body := get(t, a, "/v1/status"); json.Unmarshal([]byte(body), &pools) != nil || len(pools) != 1 {
		t.Fatalf("got %s", body)
	}
	return pools[0].Tiers
}

func testNamespaceID() string {
	ns := agenttest.Namespace()
	return ns.ID().String()
}

func TestResetEmptiesATierUnlessItIsInUse(t *testing.T) {
	a, c := filledAgent(t, 3)
	before := a.status(t)
	if before["host"].Inactive != 3 || before["disk"].Inactive != 3 || before["host"].Active != 0 {
		t.Fatalf("status %+v", before)
	}
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 3)
	agenttest.Pin(t, c, r, 1)
	for _, body := range []string{`{"tier":"host"}`, `{"tier":"all"}`, `{"tier":"host","namespace":"` + testNamespaceID() + `"}`} {
		if status, got := post(t, a, "/v1/reset", body); status != http.StatusConflict || !strings.Contains(got, "in use") {
			t.Errorf("%s: status %d, %s", body, status, got)
		}
	}
	if got := a.status(t); got["host"].Active != 1 || got["disk"].Inactive != 3 {
		t.Errorf("after refusals: %+v", got)
	}
	agenttest.CloseRequest(t, c, r)
	agenttest.Eventually(t, "nothing is in use", func() bool { return a.status(t)["host"].Active == 0 })
	want := fmt.Sprintf(`{"reset":["%s"]}`, testNamespaceID())
	if status, got := post(t, a, "/v1/reset", `{"tier":"disk"}`); status != http.StatusOK || strings.TrimSpace(got) != want {
		t.Errorf("status %d, got %s, want %s", status, got, want)
	}
	if got := a.status(t); got["host"].Inactive != 3 || got["disk"].Inactive != 0 {
		t.Errorf("after a reset of the disk: %+v", got)
	}
	agenttest.Eventually(t, "the disk's records are written", func() bool { return a.Stats().Quiet })
	if status, got := post(t, a, "/v1/reset", `{"tier":"all"}`); status != http.StatusOK {
		t.Errorf("status %d, got %s", status, got)
	}
	if got := a.status(t); got["host"].Inactive+got["disk"].Inactive != 0 {
		t.Errorf("after a reset of all: %+v", got)
	}
}

func TestResetBlocksSaysWhatBecameOfEach(t *testing.T) {
	a, c := filledAgent(t, 2)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 2)
	agenttest.Pin(t, c, r, 1)
	ns := agenttest.Namespace()
	id, tokens := blockmgr.NewIdentifier(), agenttest.Prompt(1, 2)
	first := id.First(id.Root(ns.ID(), "", "", ""), tokens[:agenttest.BlockSize])
	used, free := uint64(first.Seq), uint64(id.Next(&first, tokens[agenttest.BlockSize:]).Seq)
	body := fmt.Sprintf(`{"namespace":"%s","tier":"host","sequence_hashes":["%016x",%d,"00000000000000ff"]}`, testNamespaceID(), used, free)
	status, got := post(t, a, "/v1/reset-blocks", body)
	want := fmt.Sprintf(`{"reset_blocks":["%016x"],"not_found":["00000000000000ff"],"not_reset":["%016x"]}`, free, used)
	if status != http.StatusOK || strings.TrimSpace(got) != want {
		t.Errorf("status %d, got %s, want %s", status, got, want)
	}
}

func TestKeptBlocksAreNotReset(t *testing.T) {
	a, _ := filledAgent(t, 3)
	tokens, _ := json.Marshal(agenttest.Prompt(1, 3)[:2*agenttest.BlockSize+1])
	body := fmt.Sprintf(`{"namespace":"%s","tokens":%s,"ttl_seconds":3600}`, testNamespaceID(), tokens)
	if status, got := post(t, a, "/v1/keep", body); status != http.StatusOK || strings.TrimSpace(got) != `{"kept":2,"blocks":2}` {
		t.Errorf("status %d, got %s", status, got)
	}
	if got := a.status(t); got["host"].Active != 2 || got["disk"].Active != 2 {
		t.Errorf("status %+v, want two blocks in use", got)
	}
	body = fmt.Sprintf(`{"namespace":"%s","tokens":%s,"salt":"tenant","ttl_seconds":1.5}`, testNamespaceID(), tokens)
	if status, got := post(t, a, "/v1/keep", body); status != http.StatusOK || strings.TrimSpace(got) != `{"kept":0,"blocks":2}` {
		t.Errorf("of another salt: status %d, got %s", status, got)
	}
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

func TestControlNamesWhatIsWrong(t *testing.T) {
	a, _ := filledAgent(t, 1)
	ns, absent := testNamespaceID(), strings.Repeat("ab", 16)
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v1/reset", `{"tier":"device"}`, 400, `tier \"device\": want host, disk or all`},
		{"/v1/reset", `{"tier":"host","namespace":"xyz"}`, 400, `namespace \"xyz\": want 32 hexadecimal digits`},
		{"/v1/reset", `{"tier":"host","namespace":"` + absent + `"}`, 404, `no such pool is open`},
		{"/v1/reset", `{"tier":"all","namespace":""}`, 400, `namespace`},
		{"/v1/reset", `{"tier":"host","force":true}`, 400, `unknown field \"force\"`},
		{"/v1/reset", `{"tier":"host"} {}`, 400, `more than one JSON value`},
		{"/v1/reset", ``, 400, `body: EOF`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"all","sequence_hashes":[1]}`, 400, `tier \"all\": want host or disk`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"host","sequence_hashes":[]}`, 400, `sequence_hashes: 0 items, want 1..1048576`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"host","sequence_hashes":["12"]}`, 400, `want 16 hexadecimal digits in quotes, or a whole number`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[1,2],"ttl_seconds":5}`, 400, `tokens: 2 items, want 16 (one block) to 4194304`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"ttl_seconds":0}`, 400, `ttl_seconds 0: want 0.001 to 2592000`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"ttl_seconds":1e-12}`, 400, `ttl_seconds 1e-12: want 0.001 to`},
	} {
		status, body := post(t, a, c.path, c.body)
		var got struct{ Error string }
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: status %d, %s; want %d, %s", c.path, c.body, status, body, c.status, c.want)
		}
	}
	if status, _ := a.control(t, http.MethodGet, "/v1/reset", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("GET /v1/reset: status %d", status)
	}
	if d := cmp.Diff(map[string]blockmgr.TierStatus{"host": {Inactive: 1, Empty: a.status(t)["host"].Empty}}["host"], a.status(t)["host"]); d != "" {
		t.Errorf("a refused request changed something:\n%s", d)
	}
	if status, got := post(t, a, "/v1/reset", `{"tier":"host_pinned"}`); status != http.StatusOK {
		t.Errorf("the host tier by its name in events: status %d, %s", status, got)
	}
}

func TestUnknownPathsAndMethodsAreRefusedInJSON(t *testing.T) {
	a := startAgent(t, testConfig(t))
	refused := func(status, want int, body, text string) {
		t.Helper()
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(body), &e); err != nil || status != want || !strings.Contains(e.Error, text) {
			t.Errorf("status %d, %q, error %v: want %d and %q", status, body, err, want, text)
		}
	}
	status, body := get(t, a, "/v2/pools")
	refused(status, http.StatusNotFound, body, "/v2/pools")
	status, body = a.control(t, http.MethodGet, "/v1/reset", "")
	refused(status, http.StatusMethodNotAllowed, body, "want POST")
	status, body = post(t, a, "/v1/pools", "{}")
	refused(status, http.StatusMethodNotAllowed, body, "GET")
}

func TestDumpOfSeveralPoolsIsOneListOfJSON(t *testing.T) {
	a := startAgent(t, testConfig(t))
	for n := range 3 {
		var pools []struct{ Blocks []struct{ Key string } }
		body := a.dump(t)
		if err := json.Unmarshal([]byte(body), &pools); err != nil || len(pools) != n {
			t.Fatalf("with %d pools: error %v, %s", n, err, body)
		}
		for _, p := range pools {
			if len(p.Blocks) != 2 {
				t.Errorf("a pool has %d blocks, want 2", len(p.Blocks))
			}
		}
		h := agenttest.Hello(uint64(n + 1))
		h.Namespace.Weights = fmt.Sprint(n)
		c := a.Connect(t, h)
		agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
		agenttest.Eventually(t, "the agent is quiet", func() bool { return a.Stats().Quiet })
	}
}
