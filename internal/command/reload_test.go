package command

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/config"
)

// reloaded sends SIGHUP to the program and waits for a log line with the texts.
func (p *program) reloaded(texts ...string) {
	p.t.Helper()
	p.signal(syscall.SIGHUP)
	p.awaitLine(0, texts...)
}

// TestAgentReloads: at SIGHUP a running agent takes over what can change, and names what waits for the
// next start. A file with an error changes nothing.
func TestAgentReloads(t *testing.T) {
	dir := shortDir(t)
	file := func(more string) string {
		return writeFile(t, dir, "yard.yaml", fmt.Sprintf("agent:\n  node: n\n  socket: %[1]s/run/s\n  host-dir: %[1]s/h\n  host-size: 16MiB\n%[2]s", dir, more))
	}
	a := startProgram(t, "agent", "--config", file(""))
	socket := filepath.Join(dir, "run", "s")
	mode := func() os.FileMode {
		info, err := os.Stat(socket)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode() != 0o660 {
		t.Errorf("mode %v at the start", mode())
	}
	const reloads, failed = "settings are reloaded", "settings are not reloaded; nothing has changed"

	file("  quota: {m: 3}\n  log-level: debug\n  allow-uid: [0, 65534]\n  drain-timeout: 1s\n  disk-filter-min: 3\n")
	a.reloaded(reloads, `"changed":["allow-uid","drain-timeout","log-level","quota"]`)
	a.awaitLine(0, "changed settings take effect at the next start", `"settings":["disk-filter-min"]`)
	if mode() != 0o666 {
		t.Errorf("mode %v with another user", mode())
	}

	// A bad value, and a good one beside it, which must not count either.
	for bad, want := range map[string]string{
		"  drain-timeout: 2h\n":        "drain timeout 2h0m0s: want 0 (none) to 1h0m0s",
		"  log-level: loud\n":          `"loud\": want debug, info, warn or error`,
		"  quota: {m: 0}\n":            `weight 0 of model \"m\": want 1 or more`,
		"  host-sise: 1GiB\n":          "yard.yaml:7: agent.host-sise: unknown; did you mean host-size?",
		"  host-size: 1GiB\n":          "host-size: is there twice",
		"  io-deadline: 1us\n":         "I/O deadline 1µs: want 0 (default) or at least 1ms",
		"  nats-user: anna\n":          "--nats-user: has no effect without --nats",
		"  disk-eviction: sometimes\n": "must be one of",
		"  control: nowhere\n":         "nowhere",
	} {
		file("  allow-uid: [0]\n" + bad)
		a.reloaded(failed, want)
		if mode() != 0o666 {
			t.Errorf("%s: mode %v after a reload that failed", bad, mode())
		}
	}
	if err := os.Remove(filepath.Join(dir, "yard.yaml")); err != nil {
		t.Fatal(err)
	}
	a.reloaded(failed, "no such file")
	file("")
	a.signal(syscall.SIGHUP)
	a.awaitLine(1, reloads, `"changed":["allow-uid","drain-timeout","log-level","quota"]`)
	if mode() != 0o660 {
		t.Errorf("mode %v after everything is as at the start", mode())
	}
	a.stop()
}

// TestRouterReloads: at SIGHUP a running router takes over worker servers, busy thresholds, the queue
// and its classes.
func TestRouterReloads(t *testing.T) {
	withoutSettings(t)
	dir := shortDir(t)
	one, two := plainServer(t, new(atomic.Bool)), plainServer(t, new(atomic.Bool))
	classes := func(name string) {
		writeFile(t, dir, "classes.yaml", "default_policy_family: a\nuncached_isl_buckets: [{min_tokens: 0, bucket: all}]\npolicy_classes: [{name: "+name+", policy_family: a, cache_bucket: all, quantum: 1}]\n")
	}
	classes("c")
	file := func(workers, more string) string {
		return writeFile(t, dir, "yard.yaml", fmt.Sprintf("router:\n  http: 127.0.0.1:0\n  control: %s/c\n  http_host: 127.0.0.1\n  http_port: 0\n  worker: [%s]\n%s", dir, workers, more))
	}
	r := startProgram(t, "router", "--config", file(one, ""))
	client, base, err := control.Client(filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	has := func(path string, want ...string) func() string {
		return func() string {
			answer, err := client.Get(base + path)
			if err != nil {
				return err.Error()
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != http.StatusOK {
				return fmt.Sprint(answer.StatusCode, err)
			}
			for _, w := range want {
				if strings.Contains(string(text), strings.TrimPrefix(w, "not ")) == strings.HasPrefix(w, "not ") {
					return fmt.Sprintf("%s: want %q in %s", path, w, text)
				}
			}
			return ""
		}
	}
	waittest.Pass(t, has("/v1/servers", one, `"ready"`))
	const reloads, failed = "settings are reloaded", "settings are not reloaded; nothing has changed"

	file(one+", "+two, "  active_decode_blocks_threshold: 0.5\n  router_temperature: 0.5\n  router_policy_config: "+dir+"/classes.yaml\n")
	r.reloaded(reloads, `"changed":["active_decode_blocks_threshold","router_policy_config","worker"]`)
	r.awaitLine(0, "changed settings take effect at the next start", `"settings":["router_temperature"]`)
	waittest.Pass(t, has("/v1/servers", one, two))
	waittest.Pass(t, has("/busy_threshold", `0.5`))

	for bad, want := range map[string]string{
		"  active_decode_blocks_threshold: 7\n":           "active_decode_blocks_threshold",
		"  router_queue_policy: sometimes\n":              "fcfs",
		"  router_policy_config: " + dir + "/absent\n":    "router_policy_config: ",
		"  max-wait: 48h\n":                               "--max-wait: 48h0m0s is not in 1ms..24h",
		"  worker-dns: ['x:1', 'y']\n  log-level: loud\n": `"loud\": want debug, info, warn or error`,
	} {
		file(two, bad)
		r.reloaded(failed, want)
		if objection := has("/v1/servers", one, two)(); objection != "" {
			t.Errorf("%s: %s", bad, objection)
		}
	}
	classes("'' ")
	file(two, "  router_policy_config: "+dir+"/classes.yaml\n")
	r.reloaded(failed, "classes.yaml")
	classes("d")
	r.reloaded(reloads, `"changed":["active_decode_blocks_threshold","worker"]`)
	waittest.Pass(t, has("/v1/servers", "not "+one, two))
	file(two+", "+two, "")
	r.reloaded(failed, "is there twice")
	r.stop()
}

// TestDocumentNamesLiveSettings: docs/config.md lists what a reload changes.
func TestDocumentNamesLiveSettings(t *testing.T) {
	text, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Reload\n")
	_, row, _ := strings.Cut(section, "|---|---|\n")
	row, _, _ = strings.Cut(row, "\n")
	cells := strings.Split(row, " | ")
	if len(cells) != 2 {
		t.Fatalf("the table of reloaded settings has the row %q", row)
	}
	_, k, err := routerModel(t)
	if err != nil {
		t.Fatal(err)
	}
	var c Agent
	agent, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	for i, flags := range [][]*kong.Flag{agent.Model.Flags, k.Model.Flags} {
		want := make(map[string]bool)
		for _, f := range flags {
			if process.IsLive(f) {
				want[f.Name] = true
			}
		}
		for _, s := range config.Settings() {
			if s.Live && i == 1 {
				want[s.Name] = true
			}
		}
		for _, quoted := range regexp.MustCompile("`[^`]+`").FindAllString(cells[i], -1) {
			name := strings.Trim(quoted, "`")
			if !want[name] {
				t.Errorf("docs/config.md: %s is not reloaded", name)
			}
			delete(want, name)
		}
		for name := range want {
			t.Errorf("docs/config.md: %s is reloaded and not listed", name)
		}
	}
}
