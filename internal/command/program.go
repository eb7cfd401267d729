package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

// Program is the command line of one binary.
type Program struct {
	// Name is what users type, Description what the help says below it.
	Name, Description string
	// Version is what the linker was told; empty in a plain go build.
	Version string
	// Root points to a struct with one field for each subcommand.
	Root any
	// Vars are values that the help of Root refers to.
	Vars kong.Vars
}

const description = `A node-wide KV cache for LLM inference and the router that knows what is in it.

The agent keeps the blocks of a node's engines in host memory and on disk and publishes what lies where. The router sends each request to the worker that can serve it soonest. "blockyard demo" shows both at work without a GPU.`

// productRoot is the command line of blockyard.
type productRoot struct {
	Agent     Agent              `cmd:"" help:"Run the node agent: host and disk tiers, engine sessions, events."`
	Router    Router             `cmd:"" help:"Run the router: choose a worker for each request."`
	Demo      labCommand         `cmd:"" passthrough:"" help:"Run agents, simulated engines and a router on this machine and check every byte."`
	Bench     labCommand         `cmd:"" passthrough:"" help:"Measure this machine and what Blockyard makes of it."`
	Connector connectorConfigCmd `cmd:"" name:"connector-config" help:"Show what an engine must be told to use the connector."`
	Inspect   inspectCmd         `cmd:"" help:"Show an agent's or a router's events: health, gaps, drops, cursors, workers."`
	Version   Version            `cmd:"" help:"Show the version of this binary and of what it is linked with."`
	SimEngine labCommand         `cmd:"" passthrough:"" hidden:"" help:"Run one simulated engine; the demo starts these."`
}

// Product returns the program blockyard. version is what the linker was told.
func Product(version string) Program {
	return Program{Name: "blockyard", Description: description, Version: version, Root: &productRoot{Router: NewRouter()}}
}

// Exit statuses beside 0.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// Main runs the program on the arguments of this process until it ends or a
// signal does that, and returns the exit status.
func (p Program) Main() int {
	ctx, stop := signalContext()
	defer stop()
	return p.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs the subcommand that args name and returns the exit status.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	helped := false
	parser, err := kong.New(p.Root,
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Writers(stdout, stderr),
		// Kong asks for the exit after it has printed help, then goes on parsing;
		// what it finds after that is of no interest.
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		p.Vars,
		kong.Bind(build(p)),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.BindTo(stdout, (*io.Writer)(nil)),
	)
	if err != nil {
		return report(stderr, fmt.Errorf("BUG: command line definition: %w", err))
	}
	command, err := parser.Parse(args)
	switch {
	case helped:
		return 0
	case err != nil:
		return report(stderr, err)
	}
	return report(stderr, command.Run())
}

// report writes err as one line and returns the exit status that belongs to
// it; a nil error is silent.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	line := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	fmt.Fprintf(stderr, "blockyard: %s\n", line)
	var usage *kong.ParseError
	if errors.As(err, &usage) {
		return ExitUsage
	}
	return ExitFailed
}
