package command

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestMisspeltVariableEndsTheStart: a variable of ours that nothing reads is an error
// of agent and router that names it; those of other programs are not.
func TestMisspeltVariableEndsTheStart(t *testing.T) {
	parser, err := kong.New(new(productRoot), routerDefaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"BLOCKYARD_HOST_SIZE", "BLOCKYARD_ROUTER_MODE", "BLOCKYARD_LOG_LEVEL", "BLOCKYARD_WORKER_ID", "BLOCKYARD_TEST_SEED",
		"BLOCKYARD_PORT_8090_TCP_ADDR", "BLOCKYARD_SERVICE_HOST", "BLOCKYARD_ROUTER_SERVICE_PORT_HTTP", "BLOCKYARD_PORT",
		"BLOCKYARDS", "DYN_KVBM_UNKNOWN", "HOME",
	} {
		if err := checkEnvironment(parser.Model, []string{name + "=1"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err = checkEnvironment(parser.Model, []string{"BLOCKYARD_SOKET=/x", "BLOCKYARD_HOST_SIZ=1GiB", "PATH=/bin"})
	if err == nil || !strings.Contains(err.Error(), "BLOCKYARD_HOST_SIZ, BLOCKYARD_SOKET: unknown") {
		t.Errorf("got %v", err)
	}
	t.Setenv("BLOCKYARD_HOST_SIZ", "1GiB")
	for _, command := range []string{"agent", "router"} {
		var out, errs strings.Builder
		status := Product("").Run(t.Context(), []string{command}, &out, &errs)
		if status == 0 || !strings.Contains(errs.String(), "BLOCKYARD_HOST_SIZ: unknown") {
			t.Errorf("%s: status %d, %s", command, status, errs.String())
		}
	}
}

// TestVariablesOfScriptsAreAccepted: agent and router start in the environment of a script that
// installs or tests something.
func TestVariablesOfScriptsAreAccepted(t *testing.T) {
	parser, err := kong.New(new(productRoot), routerDefaults())
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("../../scripts/*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`BLOCKYARD_\w+`).FindAllString(string(text), -1) {
			if err := checkEnvironment(parser.Model, []string{name + "=1"}); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// TestConnectorVariablesAreThoseOfTheConnector: the list here and the connector's
// table of settings name the same.
func TestConnectorVariablesAreThoseOfTheConnector(t *testing.T) {
	b, err := os.ReadFile("../../connector/blockyard/settings.py")
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?s)\n_CHECKS[^{]*\{(.*?)\n\}`).FindSubmatch(b)
	if table == nil {
		t.Fatal("settings.py has no table _CHECKS")
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^ {4}"(\w+)":`).FindAllSubmatch(table[1], -1) {
		want = append(want, strings.ToUpper(string(m[1])))
	}
	got := strings.Fields(connectorVariables)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("connectorVariables is %v, the connector has %v", got, want)
	}
}
