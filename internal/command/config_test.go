package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeConfig returns the path of a file of --config.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// printed returns the settings that "config print" shows, by name: the value and its source. The
// name of the directory is left out of sources.
func printed(t *testing.T, args ...string) map[string]string {
	t.Helper()
	var out, errs bytes.Buffer
	if status := Product("").Run(t.Context(), append([]string{"config", "print"}, append(args, "--json")...), &out, &errs); status != 0 {
		t.Fatalf("%q: status %d: %s", args, status, errs.String())
	}
	var notes []note
	if err := json.Unmarshal(out.Bytes(), &notes); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, n := range notes {
		source := n.Source
		if at := strings.LastIndex(source, "/"); at >= 0 {
			source = source[at+1:]
		}
		all[n.Name] = n.Value + " from " + source
	}
	return all
}

const nodeConfig = `cluster: prod
agent:
  node: n1
  host-size: 2GiB
  disk_size: 3GiB
  allow-uid: [1000, 1001]
  quota: {llama: 3}
  no-prefetch: true
router:
  http: 127.0.0.1:8090
  worker: ["http://a:8000,role=both", "http://b:8000"]
  router_mode: round-robin
  max-requests: 100
`

// TestConfigFileIsBelowFlagsAndVariables: a flag wins over Blockyard's variable, that over KVBM's,
// that over the file, and all over the default. Lists and maps are YAML's.
func TestConfigFileIsBelowFlagsAndVariables(t *testing.T) {
	withoutSettings(t)
	path := writeConfig(t, nodeConfig)
	check := func(got map[string]string, want map[string]string) {
		t.Helper()
		for name, w := range want {
			if got[name] != w {
				t.Errorf("%s: %q, want %q", name, got[name], w)
			}
		}
	}
	check(printed(t, "agent", "--config", path), map[string]string{
		"cluster": "prod from b.yaml:1", "node": "n1 from b.yaml:3", "host-size": "2GiB from b.yaml:4", "disk-size": "3GiB from b.yaml:5",
		"allow-uid": "[1000 1001] from b.yaml:6", "quota": "map[llama:3] from b.yaml:7", "no-prefetch": "true from b.yaml:8", "io-deadline": "5s from default",
	})
	check(printed(t, "router", "--config", path), map[string]string{
		"cluster": "prod from b.yaml:1", "http": "127.0.0.1:8090 from b.yaml:10", "worker": "http://a:8000,role=both,http://b:8000 from b.yaml:11",
		"router_mode": "round-robin from b.yaml router_mode", "max-requests": "100 from b.yaml:13", "max-wait": "10m0s from default",
		"router_temperature": "0 from default",
	})
	t.Setenv("BLOCKYARD_CONFIG", path)
	t.Setenv("BLOCKYARD_CLUSTER", "dev")
	t.Setenv("DYN_KVBM_CPU_CACHE_GB", "7")
	t.Setenv("DYN_ROUTER_MODE", "random")
	check(printed(t, "agent", "--disk-size=1GiB"), map[string]string{
		"cluster": "dev from BLOCKYARD_CLUSTER", "host-size": "7GB from DYN_KVBM_CPU_CACHE_GB", "disk-size": "1GiB from --disk-size", "node": "n1 from b.yaml:3",
	})
	check(printed(t, "router", "--max-requests=5"), map[string]string{
		"cluster": "dev from BLOCKYARD_CLUSTER", "router_mode": "random from DYN_ROUTER_MODE", "max-requests": "5 from --max-requests",
	})
}

// TestConfigCheckNamesTheLine: check reads the file as agent and router do, and its errors name the
// line.
func TestConfigCheckNamesTheLine(t *testing.T) {
	withoutSettings(t)
	run := func(path string) (status int, out, errs string) {
		var o, e bytes.Buffer
		status = Product("").Run(t.Context(), []string{"config", "check", path}, &o, &e)
		return status, o.String(), e.String()
	}
	if status, out, errs := run(writeConfig(t, nodeConfig)); status != 0 || strings.Count(out, ": ok\n") != 2 {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	for from, c := range map[string]struct{ to, want string }{
		"host-size: 2GiB":          {"host-size: large", "b.yaml:4: --host-size"},
		"host-size: 2GiB ":         {"host-sise: 2GiB", "b.yaml:4: agent.host-sise: unknown; did you mean host-size?"},
		"router_mode: round-robin": {"router_mode: best", "router_mode"},
		"max-requests: 100":        {"max-requests: 0", "b.yaml:13: --max-requests: 0 is not in 1..1048576"},
		"allow-uid: [1000, 1001]":  {"allow-uid: [root]", "b.yaml:6: --allow-uid"},
		"cluster: prod":            {"cluster: a b", "cluster"},
	} {
		text := strings.Replace(nodeConfig, strings.TrimSpace(from), c.to, 1)
		if status, _, errs := run(writeConfig(t, text)); status != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d, %q, want %q", c.to, status, errs, c.want)
		}
	}
	if status, _, errs := run(filepath.Join(t.TempDir(), "none.yaml")); status != 1 || !strings.Contains(errs, "--config") {
		t.Errorf("no file: status %d, %q", status, errs)
	}
}

// TestSettingsAreInOneFile: a setting of the router is not taken from two files.
func TestSettingsAreInOneFile(t *testing.T) {
	withoutSettings(t)
	var out, errs bytes.Buffer
	document := filepath.Join(t.TempDir(), "router.json")
	if err := os.WriteFile(document, []byte(`{"router_mode":"kv"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"config", "print", "router", "--config", writeConfig(t, nodeConfig), "--router-config", document}
	if status := Product("").Run(t.Context(), args, &out, &errs); status == 0 || !strings.Contains(errs.String(), "--router-config") {
		t.Errorf("status %d, %s", status, errs.String())
	}
}

// TestImagesConfigIsTaken: the file of the container image is one that agent and router take.
func TestImagesConfigIsTaken(t *testing.T) {
	withoutSettings(t)
	const path = "../../deploy/image/blockyard.yaml"
	if got := printed(t, "agent", "--config", path)["host-size"]; !strings.HasPrefix(got, "48MiB from blockyard.yaml:") {
		t.Errorf("host-size %q", got)
	}
	if got := printed(t, "router", "--config", path)["http"]; !strings.HasPrefix(got, ":8090 from blockyard.yaml:") {
		t.Errorf("http %q", got)
	}
}

// TestConfigOfRoutersThatNeedNATS: a check connects to nothing. A setting that needs NATS is accepted with the address of
// a server, and refused without.
func TestConfigOfRoutersThatNeedNATS(t *testing.T) {
	withoutSettings(t)
	for _, setting := range []string{"router_replica_sync", "serve_indexer", "use_remote_indexer"} {
		for nats, status := range map[string]int{"nats: nats://127.0.0.1:4222\n": 0, "": ExitFailed} {
			var out, errs bytes.Buffer
			file := writeConfig(t, nats+"router: {"+setting+": true}\n")
			if got := Product("").Run(t.Context(), []string{"config", "check", file}, &out, &errs); got != status {
				t.Errorf("%s, %q: status %d, want %d: %s", setting, nats, got, status, errs.String())
			}
			if status != 0 && !strings.Contains(errs.String(), "needs --nats") {
				t.Errorf("%s without NATS: %s", setting, errs.String())
			}
		}
	}
}
