package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/lab/engine"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
)

// admin runs "blockyard admin" with the arguments and returns the status and both outputs.
func runAdmin(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	status := Product("").Run(t.Context(), append([]string{"admin"}, args...), &out, &out)
	return status, out.String()
}

// wantAdmin checks the exit status and the output of "blockyard admin".
func wantAdmin(t *testing.T, status int, want string, args ...string) {
	t.Helper()
	if code, out := runAdmin(t, args...); code != status || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("admin %q: status %d, want %d and %q:\n%s", args, code, status, want, out)
	}
}

// operatedAgent runs an agent that asks operators for a token, with an engine that has stored 10
// blocks of a prompt in both tiers.
func operatedAgent(t *testing.T) (a *agent.Agent, dir string, logs *observer.ObservedLogs) {
	t.Helper()
	dir, err := os.MkdirTemp("", "by") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("tokens"), []byte("anna 0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	a, err = agent.New(t.Context(), agent.Config{
		Node: "n", Socket: at("s"), ControlTokens: at("tokens"),
		Tiers: node.Tiers{Config: blockmgr.Config{HostDir: at("h"), HostBytes: 16 << 20, DiskDir: at("d"), DiskBytes: 16 << 20,
			ExtentBytes: 1 << 20, ScrubBytesPerSecond: -1}}, // a block that is scrubbed is in use
	}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, a.Run)
	url := startEngineBeside(t, a.SocketPath())
	tokens := make([]uint32, 16*10+1)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	list, _ := json.Marshal(tokens)
	if err := os.WriteFile(at("prompt"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(engine.GenerateRequest{RequestID: "r", Tokens: tokens, OutputTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post(url+"/v1/generate", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	waittest.Pass(t, func() string {
		s := a.Stats()
		if len(s.Pools) == 1 && s.Quiet && s.Pools[0].Stats.Host.Inactive == 10 && s.Pools[0].Stats.Disk.Inactive == 10 {
			return ""
		}
		return fmt.Sprintf("the pool has no 10 blocks at rest in each tier: %+v", s.Pools)
	})
	return a, dir, logs
}

// TestAdminOfAnAgent: each command does at a real agent what it says, a dry run does nothing, and the
// agent logs who asked for what.
func TestAdminOfAnAgent(t *testing.T) {
	withoutSettings(t)
	a, dir, logs := operatedAgent(t)
	t.Setenv("BLOCKYARD_CONTROL_TOKEN_FILE", filepath.Join(dir, "tokens"))
	at := func(args ...string) []string { return append(args, "--control", a.ControlAddr()) }
	namespace := a.Stats().Pools[0].Namespace
	prompt := filepath.Join(dir, "prompt")
	hash := blockOf(t, at)

	wantAdmin(t, 0, namespace+" m host 0 10 ", at("status")...)
	wantAdmin(t, 0, "dry run: 10 of 10 blocks are kept for 1h0m0s", at("pin", "--tokens-file", prompt, "--for", "1h", "--dry-run")...)
	wantAdmin(t, 0, namespace+" m host 0 10 ", at("status")...)
	wantAdmin(t, 0, "10 of 10 blocks are kept for 1h0m0s", at("pin", "--tokens-file", prompt, "--for", "1h")...)
	wantAdmin(t, 0, namespace+" m host 10 0 ", at("status")...)
	wantAdmin(t, 1, "blocks are in use", at("reset", "--tier", "host", "--all")...)
	wantAdmin(t, 1, "1 hashes have blocks in use, which stay: "+hash, at("evict", "--tier", "host", "--hash", hash)...)
	wantAdmin(t, 0, "1 of 1 blocks are no longer kept", at("unpin", "--hash", hash)...)
	wantAdmin(t, 0, "9 of 10 blocks are no longer kept", at("unpin", "--model", "m", "--all")...)
	wantAdmin(t, 0, "dry run: 1 hashes left the tier", at("evict", "--tier", "host", "--hash", hash, "--dry-run")...)
	wantAdmin(t, 0, "1 hashes left the tier, 0 are not in it, 0 stay", at("evict", "--tier", "host", "--hash", hash)...)
	wantAdmin(t, 0, "dry run: 0 blocks were in host memory, 0 were read into it, 1 are on disk alone", at("prefetch", "--hash", hash, "--dry-run")...)
	wantAdmin(t, 0, "9 blocks were in host memory, 1 were read into it, 0 are on disk alone", at("prefetch", "--tokens-file", prompt)...)
	wantAdmin(t, 0, "10 blocks were in host memory, 0 were read into it", at("prefetch", "--all")...)
	wantAdmin(t, 0, "dry run: 10 hashes left the tier", at("evict", "--tier", "disk", "--tokens-file", prompt, "--dry-run")...)
	wantAdmin(t, 0, "1 hashes left the tier", at("evict", "--tier", "host", "--hash", hash)...)
	wantAdmin(t, 2, "want --hash, --tokens-file or --all", at("evict", "--tier", "host")...)
	wantCapacity(t, at)
	wantAdmin(t, 0, "1 namespaces have nothing left to write, 0 have", at("flush")...)
	wantAdmin(t, 0, "dry run: 1 namespaces with 19 slots would be emptied", at("reset", "--tier", "all", "--all", "--dry-run")...)
	wantAdmin(t, 0, `{ "reset": [ "`+namespace+`" ] }`, at("reset", "--tier", "all", "--namespace", namespace, "--json")...)
	wantAdmin(t, 0, namespace+" m host 0 0 ", at("status")...)

	wantAdmin(t, 1, "no such request here", at("snapshot")...)
	wantAdmin(t, 1, `--model "x": 0 namespaces of the agent, want 1`, at("unpin", "--model", "x", "--all")...)
	wantAdmin(t, 2, "want --hash, --tokens-file or --all", at("unpin")...)
	wantAdmin(t, 2, `--hash "12": want 16 hexadecimal digits`, at("evict", "--tier", "host", "--hash", "12")...)
	t.Setenv("BLOCKYARD_CONTROL_TOKEN_FILE", "")
	os.Unsetenv("BLOCKYARD_CONTROL_TOKEN_FILE")
	wantAdmin(t, 1, "status 401: header Authorization", at("status")...)
	wantAudit(t, logs, namespace, hash)
}

// wantCapacity checks the commands that change how much the tiers and a model may have.
func wantCapacity(t *testing.T, at func(...string) []string) {
	t.Helper()
	wantAdmin(t, 0, "dry run: the host tier goes from 16MiB to 8MiB; its extents take ", at("resize", "--tier", "host", "--size", "8MiB", "--dry-run")...)
	wantAdmin(t, 0, "the host tier goes from 16MiB to 8MiB; its extents take ", at("resize", "--tier", "host", "--size", "8MiB")...)
	wantAdmin(t, 0, "the disk tier goes from 16MiB to 24MiB; its extents take ", at("resize", "--tier", "disk", "--size", "24MiB")...)
	wantAdmin(t, 1, "status 409: host size 1KiB: want 1MiB (one extent) to 16GiB (16384 extents)", at("resize", "--tier", "host", "--size", "1KiB")...)
	wantAdmin(t, 0, "dry run: the host limit goes from none to 3MiB; ", at("quota", "--model", "m", "--tier", "host", "--size", "3MiB", "--dry-run")...)
	wantAdmin(t, 0, "the host limit goes from none to 4MiB; ", at("quota", "--model", "m", "--tier", "host", "--size", "4MiB")...)
	wantAdmin(t, 1, "host limit 1KiB: want 0 (none) or at least 1MiB (one extent)", at("quota", "--model", "m", "--tier", "host", "--size", "1KiB")...)
	wantAdmin(t, 2, "a limit needs --model, --tenant or both, --tier and --size", at("quota", "--model", "m")...)
	_, shown := runAdmin(t, at("quota")...)
	if fields := strings.Fields(shown); !strings.Contains(strings.Join(fields, " "), " 8MiB ") || !strings.Contains(strings.Join(fields, " "), "model m 1 ") || !strings.Contains(shown, "4MiB") {
		t.Errorf("quota shows:\n%s", shown)
	}
	wantAdmin(t, 0, "the host limit goes from 4MiB to none; ", at("quota", "--model", "m", "--tier", "host", "--size", "0")...)
}

// blockOf returns the hash of the prompt's last block.
func blockOf(t *testing.T, at func(...string) []string) string {
	t.Helper()
	client, base, err := control.Client(at()[1])
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/pools", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer 0123456789abcdef")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var pools []struct{ Blocks []struct{ Hash string } }
	if err := json.NewDecoder(resp.Body).Decode(&pools); err != nil || len(pools) != 1 || len(pools[0].Blocks) != 10 {
		t.Fatalf("%v, pools %+v", err, pools)
	}
	return pools[0].Blocks[9].Hash
}

// wantAudit checks the lines about operators' calls in the agent's log.
func wantAudit(t *testing.T, logs *observer.ObservedLogs, namespace, hash string) {
	t.Helper()
	var got strings.Builder
	for _, e := range logs.FilterMessage("operator's call").All() {
		m := e.ContextMap()
		if want := fmt.Sprintf("uid %d pid %d", os.Getuid(), os.Getpid()); m["from"] != want {
			t.Errorf("a call from %q, want %q", m["from"], want)
		}
		fmt.Fprintln(&got, m["token"], m["call"], m["about"], m["status"])
	}
	named := fmt.Sprintf("namespace %q", namespace)
	for _, want := range []string{
		"anna POST /v1/keep 3600 seconds, a prompt of 161 tokens, " + named + ", dry run 200",
		"anna POST /v1/keep 3600 seconds, a prompt of 161 tokens, " + named + " 200",
		`anna POST /v1/reset tier "host", all namespaces 409`,
		`anna POST /v1/reset-blocks tier "host", 1 hashes ` + hash + ", " + named + " 200",
		`anna POST /v1/reset-blocks tier "disk", a prompt of 161 tokens, ` + named + ", dry run 200",
		"anna POST /v1/unkeep all blocks, " + named + " 200",
		"anna POST /v1/flush all namespaces 200",
		"anna POST /v1/prefetch 1 hashes " + hash + ", " + named + ", dry run 200",
		"anna POST /v1/resize tier \"host\" to 8MiB 200",
		"anna POST /v1/quota model \"m\", tier \"host\" to 4MiB 200",
	} {
		if !strings.Contains(got.String(), want+"\n") {
			t.Errorf("the log lacks %q:\n%s", want, got.String())
		}
	}
	if n := logs.FilterMessage("operator's call is refused").Len(); n != 1 {
		t.Errorf("%d lines about refused calls, want 1", n)
	}
}

// TestAdminOfARouter: a drained server gets nothing, a dry run drains nothing, and a router without a
// store of snapshots says what it lacks.
func TestAdminOfARouter(t *testing.T) {
	withoutSettings(t)
	t.Setenv("NATS_SERVER", "")
	var dead atomic.Bool
	c := settle(t, "--worker", plainServer(t, &dead)+",id=7")
	sources, err := c.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sources.Close() })
	r, err := router.New(c.options("", zap.NewNop()), sources.Source)
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.serverFlags.directory(r, sources, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "c")
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, r.Run)
	runUntilEnd(t, d.Run)
	served := api.New(r, api.Options{Servers: d})
	runUntilEnd(t, func(ctx context.Context) error { return served.ServeControl(ctx, l) })
	at := func(args ...string) []string { return append(args, "--control", socket) }
	state := func(want string) func() string {
		return func() string {
			if code, out := runAdmin(t, at("status")...); code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), "7 "+want+" 0 tiny http") {
				return "not " + want + ": " + out
			}
			return ""
		}
	}
	waittest.Pass(t, state("ready"))
	wantAdmin(t, 0, "dry run: worker 7 gets no new requests; 0 requests are in progress", at("drain", "7", "--dry-run")...)
	if objection := state("ready")(); objection != "" {
		t.Error(objection)
	}
	wantAdmin(t, 0, "worker 7 gets no new requests; 0 requests are in progress", at("drain", "7")...)
	waittest.Pass(t, state("draining"))
	wantAdmin(t, 0, `"draining": false`, at("undrain", "7", "--json")...)
	waittest.Pass(t, state("ready"))
	wantAdmin(t, 1, "status 404: worker 8", at("drain", "8")...)
	wantAdmin(t, 1, "status 409: snapshot: the router has no store; want --durable-kv-events", at("snapshot")...)
	wantAdmin(t, 1, "no such request here", at("reset", "--tier", "all", "--all")...)
	wantAdmin(t, 1, "status 409: snapshot: the router has no store", at("snapshot", "--dry-run")...)
}

// TestAdminDryRunAtAnOlderRouter: a router that ignores dry_run is not asked to drain.
func TestAdminDryRunAtAnOlderRouter(t *testing.T) {
	withoutSettings(t)
	for name, document := range map[string]string{
		"without the parameter": `{"paths":{"/v1/workers/{id}/drain":{"post":{"parameters":[{"name":"id"}]}},"/v1/snapshot":{"post":{}}}}`,
		"without a document":    "",
	} {
		var changed atomic.Int32
		mux := http.NewServeMux()
		mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, _ *http.Request) {
			changed.Add(1)
			_, _ = io.WriteString(w, `{"draining":true}`)
		})
		if document != "" {
			mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, document) })
		}
		old := httptest.NewServer(mux)
		at := func(args ...string) []string { return append(args, "--control", old.Listener.Addr().String()) }
		for _, verb := range []string{"drain", "undrain"} {
			wantAdmin(t, 1, "--dry-run: the router does not know it for POST /v1/workers/{id}/"+verb, at(verb, "7", "--dry-run")...)
		}
		wantAdmin(t, 1, "--dry-run: the router does not know it for POST /v1/snapshot", at("snapshot", "--dry-run")...)
		if n := changed.Load(); n != 0 {
			t.Errorf("%s: %d calls of dry runs changed the router", name, n)
		}
		wantAdmin(t, 0, "worker 7 gets no new requests", at("drain", "7")...)
		old.Close()
	}
}
