package command

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/lab/golden"
)

// routerDocument is docs/router-flags.md, seen from the golden files.
const routerDocument = "../../../../docs/router-flags.md"

const routerDocumentHead = `# The router's flags

These flags of ` + "`blockyard router`" + ` say where it listens, whom it follows and what its front door accepts. How it chooses
workers is on [another page](router-config.md), whose settings are flags too. A flag wins over its variable, that over
the [file](config.md) of ` + "`--config`" + `, and all over the default. The log line ` + "`configuration`" + ` has every value that is not the default, with its source; it leaves out the NATS
login. This page is made from the flags: ` + "`go test ./internal/command -run Document -update`" + `.
`

// TestRouterDocumentHasEveryFlag keeps docs/router-flags.md equal to the flags.
func TestRouterDocumentHasEveryFlag(t *testing.T) {
	withoutSettings(t)
	_, k, err := routerModel(t)
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, routerDocument, routerDocumentHead+flagTables(t, plainFlags(k.Model.Flags)))
	if _, err := os.Stat("../../docs/router-flags.md"); err != nil {
		t.Error(err)
	}
}

// TestFlagsOfTheRouterHaveRanges: a value outside the range names flag, value and range.
func TestFlagsOfTheRouterHaveRanges(t *testing.T) {
	withoutSettings(t)
	for arg, want := range map[string]string{
		"--max-connections=-1":          "--max-connections: -1 is not in 0..",
		"--max-requests=-1":             "--max-requests: -1 is not in 1..1048576",
		"--max-wait=-1s":                "--max-wait: -1s is not in ",
		"--selection-cache-ttl-secs=0":  "--selection-cache-ttl-secs: 0 is not in 1..",
		"--worker-dns-every=1ms":        "--worker-dns-every: 1ms is not in 100ms..1h",
		"--selection-cache-max-bytes=0": "--selection-cache-max-bytes: 0 is not in 1..",
	} {
		if _, _, err := routerModel(t, arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", arg, err, want)
		}
	}
}

// TestConfigurationLineHasTheDoorsFlags: what is not the default is logged with its source, without
// passwords.
func TestConfigurationLineHasTheDoorsFlags(t *testing.T) {
	withoutSettings(t)
	t.Setenv("BLOCKYARD_ROUTER_MAX_WAIT", "5m")
	c := settle(t, "--max-running", "7", "--max-requests", "16384", "--worker", "http://me:secret@a:8000", "--nats-token", "secret")
	core, logs := observer.New(zap.InfoLevel)
	c.settings.log(zap.New(core))
	got := logs.FilterMessage("configuration").All()[0].ContextMap()
	for name, want := range map[string]any{
		"max_running": "7 (--max-running)", "max_wait": "5m0s (BLOCKYARD_ROUTER_MAX_WAIT)", "worker": "http://…@a:8000 (--worker)",
		"max_requests": nil, "max_waiting": nil, "cluster": nil, "nats_token": nil,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}
