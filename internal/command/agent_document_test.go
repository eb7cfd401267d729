package command

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/lab/golden"
)

// agentDocument is docs/agent-config.md, seen from the golden files.
const agentDocument = "../../../../docs/agent-config.md"

const agentDocumentHead = `# The agent's configuration

` + "`blockyard agent`" + ` takes each setting as a flag, as an environment variable, or in a [file](config.md). A flag wins over
Blockyard's variable, that over KVBM's, that over the file, and all over the default. The log line ` + "`configuration`" + ` shows every value with its source.
[Running the agent](operations.md#where-settings-come-from) has the rules, [KVBM's variables](kvbm-environment.md) the
values that KVBM's variables take. This page is made from the flags: ` + "`go test ./internal/command -run Document -update`" + `.
`

// TestAgentDocumentHasEveryFlag keeps docs/agent-config.md equal to the flags.
func TestAgentDocumentHasEveryFlag(t *testing.T) {
	var c Agent
	k, err := kong.New(&c, kong.Name("agent"))
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, agentDocument, agentDocumentHead+flagTables(t, k.Model.Flags))
	if _, err := os.Stat("../../docs/agent-config.md"); err != nil {
		t.Error(err)
	}
}

// flagTables returns a table for each group of flags, in the order of their first flags.
func flagTables(t *testing.T, flags []*kong.Flag) string {
	t.Helper()
	var groups []string
	tables := make(map[string]*strings.Builder)
	for _, f := range flags {
		if f.Name == "help" {
			continue
		}
		if f.Group == nil || f.Help == "" {
			t.Errorf("--%s has no group or no help", f.Name)
			continue
		}
		group := f.Group.Title
		if tables[group] == nil {
			groups = append(groups, group)
			tables[group] = new(strings.Builder)
			fmt.Fprintf(tables[group], "\n## %s\n\n| flag | variables | default | meaning |\n|---|---|---|---|\n", group)
		}
		variables := f.Envs
		if kvbm := f.Tag.Get("kvbm"); kvbm != "" {
			variables = append(variables[:len(variables):len(variables)], strings.Split(kvbm, ",")...)
		}
		def := "–"
		switch {
		case f.Default != "":
			def = "`" + f.Default + "`"
		case f.IsBool():
			def = "off"
		}
		meaning := f.Help
		if process.IsLive(f) {
			meaning += " [Reloaded](config.md#reload)."
		}
		if limits := f.Tag.Get("range"); limits != "" {
			meaning += " Range: `" + limits + "`."
		}
		fmt.Fprintf(tables[group], "| `--%s` | `%s` | %s | %s |\n", f.Name, strings.Join(variables, "`<br>`"), def, meaning)
	}
	var all strings.Builder
	for _, g := range groups {
		all.WriteString(tables[g].String())
	}
	return all.String()
}
