package command

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/router/config"
)

// variablePrefix begins the name of every environment variable of ours.
const variablePrefix = "BLOCKYARD_"

// connectorVariables are the settings of connector/blockyard/settings.py: an engine
// that shares its environment with the agent has them.
const connectorVariables = "SOCKET WORKER_ID ENABLED LOAD STORE MIN_LOAD_BLOCKS LOOKUP_WAIT_MS MAX_INFLIGHT_BLOCKS" +
	" WEIGHTS NAMESPACE_SALT WANT_EVICTED STATS SERVING_ENDPOINT LOG_LEVEL"

// scriptVariables are those that the repository's scripts and tests read.
const scriptVariables = "BIN SHARED DYNAMO_ENV EVENTS_ENV VLLM_ENV"

// foreignVariable matches what tests set, and what Kubernetes sets in every container
// for a service whose name begins with "blockyard".
var foreignVariable = regexp.MustCompile(`^BLOCKYARD_((E2E|TEST)_\w+|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+))$`)

// checkEnvironment reports, as an error, the variables of ours that no command of app
// and no connector reads: a misspelt setting would otherwise be ignored in silence.
func checkEnvironment(app *kong.Application, environ []string) error {
	known := make(map[string]bool)
	for _, name := range strings.Fields(connectorVariables + " " + scriptVariables) {
		known[variablePrefix+name] = true
	}
	addVariables(known, app.Node)
	for _, s := range config.Settings() { // some have no flag
		for _, name := range s.Env {
			known[name] = true
		}
	}
	var unknown []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, variablePrefix) && !known[name] && !foreignVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("environment variable %s: unknown; --help lists those that are read", strings.Join(unknown, ", "))
}

// addVariables adds the variables of the flags of a command and of those below it.
func addVariables(known map[string]bool, node *kong.Node) {
	for _, f := range node.Flags {
		for _, name := range f.Envs {
			known[name] = true
		}
	}
	for _, child := range node.Children {
		addVariables(known, child)
	}
}
