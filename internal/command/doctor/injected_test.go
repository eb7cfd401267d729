package doctor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// injection makes one cause true in a healthy yard. also are the causes that come with it.
type injection struct {
	inject func(y *yard)
	also   []string
}

func agent(from, to string) injection {
	return injection{inject: func(y *yard) { replace(y.agent, "/v1/stats", from, to) }}
}

func router(path, from, to string) injection {
	return injection{inject: func(y *yard) { replace(y.router, path, from, to) }}
}

func engine(path, from, to string) injection {
	return injection{inject: func(y *yard) { replace(y.engine, path, from, to) }}
}

// injections has a way to make each cause true.
func injections() map[string]injection {
	all := map[string]injection{
		// The counters of an engine that has left stay.
		"no-engines": {inject: func(y *yard) {
			replace(y.agent, "/v1/stats", `"sessions":1,`, `"sessions":0,`)
			replace(y.agent, "/v1/stats", `"worker":"7","rank":0,"role":"scheduler","connected":1`, `"worker":"8","rank":0,"role":"scheduler","connected":0`)
		}},
		"engines-denied":        agent(`"denied":0`, `"denied":2`),
		"engines-refused":       agent(`"refused":0`, `"refused":2`),
		"session-panics":        agent(`"panics":0`, `"panics":1`),
		"stuck-sessions":        agent(`"former_stuck":0`, `"former_stuck":1`),
		"engine-without-events": agent(`"worker":"7"`, `"worker":"8"`),
		"engine-silent":         agent(`"frames":5`, `"frames":0`),
		"events-lost":           agent(`"health":"exact","dropped":{},"rank":{"frames":5,"lost":0`, `"health":"degraded","dropped":{},"rank":{"frames":5,"lost":3`),
		"replay-silent":         agent(`"replay_failures":0`, `"replay_failures":3,"replays":3`),
		"events-unreadable":     agent(`"bad_events":0`, `"bad_events":1`),
		"events-dropped":        agent(`"dropped":{}`, `"dropped":{"unnamed_lora":4}`),
		"stream-degraded":       agent(`"health":"exact"`, `"health":"degraded"`),
		"namespaces-differ":     agent(`"pools":[`, `"pools":[{"pool":10,"model":"tiny","namespace":"bb","block_size":32,"sessions":1},`),
		"disk-off":              agent(`"disk_breaker_open":false`, `"disk_breaker_open":true`),
		"disk-read-only":        agent(`"disk_read_only":false`, `"disk_read_only":true`),
		"corrupt-blocks":        agent(`"corrupt_reads":0`, `"corrupt_reads":1`),
		"tier-cannot-grow":      agent(`"grow_errors":0`, `"grow_errors":1`),
		"engine-hangs":          agent(`"grants_overdue":0`, `"grants_overdue":8`),
		"loads-failed":          agent(`"failed_loads":0`, `"failed_loads":1`),
		"connector-errors":      agent(`"errors":0`, `"errors":1`),
		"output-failed":         agent(`"zmq_failed":0`, `"zmq_failed":1`),
		"rival-publisher":       agent(`"rival_sources":0`, `"rival_sources":1`),

		"versions-differ": agent(`blockyard 0.2.0`, `blockyard 0.1.9`),
		"versions-apart":  router("/metrics", `v0.2.0`, `v0.4.0`),

		"agent-not-followed":    agent(`"publisher_id":"0b"`, `"publisher_id":"0c"`),
		"agent-connection":      router("/v1/agents", `"connected":true`, `"connected":false,"error":"connection refused"`),
		"feed-degraded":         router("/v1/feeds", `"health":"exact"`, `"health":"degraded"`),
		"owner-ambiguous":       router("/v1/feeds", `"digest_ok":true`, `"digest_ok":true,"rival":"0f"`),
		"index-diverged":        router("/v1/feeds", `"digest_ok":true`, `"digest_ok":false`),
		"worker-without-events": router("/v1/workers", `"quality":"exact"`, `"quality":"fallback","silent":true`),
		"server-not-ready":      router("/v1/servers", `"state":"ready"`, `"state":"unhealthy","problem":"/health: 503"`),
		"model-unknown":         router("/v1/workers", `"model":"tiny"`, `"model":"other"`),

		"prefix-caching-off":     engine("/metrics", `enable_prefix_caching="True"`, `enable_prefix_caching="False"`),
		"events-off":             engine("/kv_event_sources", `"enable_kv_cache_events":true`, `"enable_kv_cache_events":false`),
		"replay-missing":         engine("/kv_event_sources", `"replay_endpoint":`, `"replay":`),
		"block-size-differs":     engine("/metrics", `block_size="32"`, `block_size="16"`),
		"connector-absent":       engine("/metrics", `vllm:blockyard_connected`, `vllm:other`),
		"connector-disconnected": engine("/metrics", `model_name="tiny"} 1.0`, `model_name="tiny"} 0.0`),
		"engine-unreachable":     engine("/health", "", "503 EngineDeadError"),
	}
	for id, i := range nodeInjections() {
		all[id] = i
	}
	for id, i := range connectionInjections() {
		all[id] = i
	}
	for id, i := range canaryInjections() {
		all[id] = i
	}
	return all
}

// nodeInjections are those of the node, on a copy of parts of /proc where this node lacks them.
func nodeInjections() map[string]injection {
	return map[string]injection{
		"tier-space": {inject: func(y *yard) { y.c.DiskSize = 1 << 60 }, also: []string{"descriptors"}},
		"tier-memory": {inject: func(y *yard) {
			y.fakeRoot(map[string]string{"proc/meminfo": "MemTotal: 1024 kB\nMemAvailable: 1024 kB\nSwapTotal: 0 kB\n"})
			y.c.HostSize = 2 << 20
		}},
		"tier-location": {inject: func(y *yard) { y.c.DiskDir, y.c.DiskSize = "/dev/shm/blockyard-doctor-test", 1<<20 }},
		"memlock": {inject: func(y *yard) {
			y.fakeRoot(map[string]string{"proc/self/limits": "Max locked memory         1048576              1048576              bytes     \n"})
			y.c.HostSize = 2 << 20
		}},
		"disk-worn": {inject: func(y *yard) {
			var st unix.Stat_t
			if err := unix.Stat(y.dir, &st); err != nil {
				y.t.Fatal(err)
			}
			y.fakeRoot(map[string]string{"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n",
				fmt.Sprintf("sys/dev/block/%d:%d/size", unix.Major(st.Dev), unix.Minor(st.Dev)): "1"})
			y.c.DiskSize, y.c.smartctl = 1<<20, filepath.Join(y.dir, "smartctl")
			script := "#!/bin/sh\necho '{\"nvme_smart_health_information_log\":{\"percentage_used\":93,\"data_units_written\":2000000}}'\n"
			if err := os.WriteFile(y.c.smartctl, []byte(script), 0o700); err != nil {
				y.t.Fatal(err)
			}
		}},
		"descriptors": {inject: func(y *yard) { y.c.DiskSize = 1 << 62 }, also: []string{"tier-space"}},
		"proc-hidden": {inject: func(y *yard) {
			y.fakeRoot(map[string]string{"proc/self/mounts": "proc /proc proc rw,nosuid,hidepid=2 0 0\n"})
		}},
		"socket-directory": {inject: func(y *yard) {
			file := filepath.Join(y.dir, "file")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				y.t.Fatal(err)
			}
			y.c.Socket, y.before = filepath.Join(file, "agent.sock"), func() {}
		}, also: []string{"agent-gone"}},
	}
}

// closed returns an address at which nobody listens.
func closed(y *yard) string {
	l := listen(y.t)
	address := l.Addr().String()
	l.Close()
	return address
}

// connectionInjections are those of sockets and ports.
func connectionInjections() map[string]injection {
	refused := func(code, text string) injection {
		return injection{inject: func(y *yard) { y.refusal, y.c.refusal = &proto.Error{Code: code, Text: text}, time.Minute }}
	}
	return map[string]injection{
		"agent-absent": {inject: func(y *yard) { y.before = func() {} }},
		"agent-gone": {inject: func(y *yard) {
			y.before = func() {
				l, err := net.ListenUnix(proto.Network, &net.UnixAddr{Name: y.c.Socket, Net: proto.Network})
				if err != nil {
					y.t.Fatal(err)
				}
				l.SetUnlinkOnClose(false)
				l.Close()
			}
		}},
		"socket-forbidden": {inject: func(y *yard) {
			y.inside = asNobody
			y.before = func() {
				y.serveSocket()
				if err := os.Chmod(y.c.Socket, 0); err != nil {
					y.t.Fatal(err)
				}
				if err := os.Chmod(y.dir, 0o755); err != nil {
					y.t.Fatal(err)
				}
			}
		}},
		"user-denied":        refused(proto.CodeDenied, "user 1000 may not connect to this agent"),
		"agent-full":         refused(proto.CodeLimit, "the agent has 8 connections"),
		"pid-hidden":         {inject: func(y *yard) { y.c.root = y.t.TempDir() }},
		"admin-unreachable":  {inject: func(y *yard) { y.c.Agent = closed(y) }},
		"agent-not-ready":    {inject: func(y *yard) { y.agent["/readyz"] = "503 not ready" }},
		"router-unreachable": {inject: func(y *yard) { y.c.Router = closed(y) }},
		"router-not-ready":   {inject: func(y *yard) { y.router["/v1/workers"] = "[]" }, also: []string{"model-unknown"}},
		"tokens-missing":     {inject: func(y *yard) { delete(y.engine, "/tokenize") }},
		"events-unreachable": {inject: func(y *yard) { y.events.Close() }},
		"tokenizers-differ": {inject: func(y *yard) {
			other := map[string]string{}
			for path, body := range y.engine {
				other[path] = strings.Replace(body, "[1,2,3]", "[1,2,4]", 1)
			}
			y.c.Engines = []string{y.serve(y.engine), y.serve(other)}
		}},
		"nats-unreachable": {inject: func(y *yard) { y.c.NATS = "nats://" + closed(y) }},
		"nats-refused":     {inject: func(y *yard) { y.login = func(o *server.Options) { o.Authorization = "secret" } }},
		"cluster-silent":   {inject: func(y *yard) { y.cluster, y.c.silence = "other", 10*time.Millisecond }},
	}
}

// TestEveryCauseIsFound: a healthy yard has no finding. Each cause, injected into it, is found, and
// nothing else is but what comes with it.
func TestEveryCauseIsFound(t *testing.T) {
	if ids, report := newYard(t).diagnose(); len(ids) > 0 {
		t.Fatalf("a healthy yard has %q:\n%s", ids, report)
	}
	all, found := injections(), 0
	for _, cause := range Causes() {
		t.Run(cause.ID, func(t *testing.T) {
			i, ok := all[cause.ID]
			if !ok {
				t.Fatal("nothing injects this cause")
			}
			y := newYard(t)
			i.inject(y)
			ids, report := y.diagnose()
			if !slices.Contains(ids, cause.ID) {
				t.Fatalf("found %q:\n%s", ids, report)
			}
			for _, id := range ids {
				if id != cause.ID && !slices.Contains(i.also, id) {
					t.Errorf("found %s besides", id)
				}
			}
			found++
		})
	}
	t.Logf("found=%d/%d", found, len(Causes()))
	if len(all) != len(Causes()) {
		t.Errorf("%d injections for %d causes", len(all), len(Causes()))
	}
}

// TestAnsweredReplaysAreNotSilent: two failures are no pattern, and an engine that answers most replays is not silent.
func TestAnsweredReplaysAreNotSilent(t *testing.T) {
	for _, counts := range []string{`"replay_failures":2,"replays":2`, `"replay_failures":3,"replays":9`} {
		y := newYard(t)
		replace(y.agent, "/v1/stats", `"replay_failures":0`, counts)
		if ids, report := y.diagnose(); len(ids) > 0 {
			t.Errorf("%s: found %q:\n%s", counts, ids, report)
		}
	}
}

// TestVerdictIsTheExitStatus: 1 with an error, 3 with warnings alone, no error of Run without.
func TestVerdictIsTheExitStatus(t *testing.T) {
	for want, v := range map[int]Verdict{1: {Errors: 1, Warnings: 2}, 3: {Warnings: 1}} {
		if got := v.ExitStatus(); got != want {
			t.Errorf("%v: exit status %d, want %d", v, got, want)
		}
	}
	y := newYard(t)
	y.c.Agent, y.c.JSON = none, true
	if _, report := y.diagnose(); !strings.Contains(report, `"errors": 0`) || !strings.Contains(report, `"findings": []`) {
		t.Errorf("report %s", report)
	}
}

// TestDocumentHasEveryCause: docs/doctor.md lists each cause with its level and text.
func TestDocumentHasEveryCause(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range causes {
		if row := "| `" + c.ID + "` | " + string(c.Level) + " | " + c.Text + " |"; !strings.Contains(string(doc), row) {
			t.Errorf("docs/doctor.md lacks %s", row)
		}
	}
}
