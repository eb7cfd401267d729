package cli

import (
	"fmt"
	"maps"
	"os"

	"github.com/blockyard-ai/blockyard/internal/command"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const description = `The demonstration, benchmarks and fault tests of Blockyard.

The commands run agents and routers as processes: this binary again, or the one of --blockyard.`

// root is the command line of blockyard-lab.
type root struct {
	Demo      demoCmd         `cmd:"" help:"Run agents, simulated engines and a router on this machine; check every byte."`
	Bench     benchCmd        `cmd:"" help:"Measure Blockyard on this machine."`
	Soak      soakCmd         `cmd:"" help:"Break a running cluster, and check what is left."`
	Simulate  simulateCmd     `cmd:"" help:"Compare ways to choose a worker in virtual time."`
	SimEngine simEngineCmd    `cmd:"" help:"Run one simulated engine; the demo starts these."`
	Version   command.Version `cmd:"" help:"Show the version of this binary and of what it is linked with."`
	Agent     command.Agent   `cmd:"" hidden:"" help:"Run the node agent that is linked into this binary."`
	Router    command.Router  `cmd:"" hidden:"" help:"Run the router that is linked into this binary."`

	Blockyard string `placeholder:"PATH" type:"existingfile" help:"The blockyard binary that runs agents and routers (default: this binary)."`
}

// New returns the program blockyard-lab. version is set by the linker.
func New(version string) command.Program {
	vars := demoVars()
	maps.Copy(vars, benchVars())
	return command.Program{Name: "blockyard-lab", Description: description, Version: version, Root: &root{Router: command.NewRouter()}, Vars: vars}
}

// programs returns the programs that a scenario starts: this binary for the lab's own, and for
// agents and routers the one that --blockyard names, or else this binary too.
func (r *root) programs() (cluster.Programs, error) {
	exe, err := os.Executable()
	if err != nil {
		return cluster.Programs{}, fmt.Errorf("find this binary: %w", err)
	}
	p := cluster.Programs{Product: exe, Lab: exe}
	if r.Blockyard != "" {
		p.Product = r.Blockyard
	}
	return p, nil
}

// moreThanZero returns the error of usage of a flag unless its value is good. Options would
// take a zero for the default.
func moreThanZero(good bool, flag string, value any) error {
	if good {
		return nil
	}
	return fmt.Errorf("--%s %v: want more than 0", flag, value)
}
