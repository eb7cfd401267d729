package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

const description = `A node-wide KV cache for LLM inference and the router that knows what is in it.

The agent keeps the blocks of a node's engines in host memory and on disk and publishes what lies where. The router sends each request to the worker that can serve it soonest. "blockyard demo" shows both at work without a GPU.`

// cli is the command line: one field for each subcommand.
type cli struct {
	Agent     agentCmd           `cmd:"" help:"Run the node agent: host and disk tiers, engine sessions, events."`
	Router    routerCmd          `cmd:"" help:"Run the router: choose a worker for each request."`
	Demo      demoCmd            `cmd:"" help:"Run agents, simulated engines and a router on this machine and check every byte."`
	Bench     benchCmd           `cmd:"" help:"Measure this machine and what Blockyard makes of it."`
	Connector connectorConfigCmd `cmd:"" name:"connector-config" help:"Show what an engine must be told to use the connector."`
	Inspect   inspectCmd         `cmd:"" help:"Show an agent's or a router's events: health, gaps, drops, cursors, workers."`
	Version   versionCmd         `cmd:"" help:"Show the version of this binary and of what it is linked with."`
	SimEngine simEngineCmd       `cmd:"" hidden:"" help:"Run one simulated engine; the demo starts these."`
}

// Exit statuses beside 0.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signalContext()
	status := run(ctx, new(cli), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run parses args into root, a pointer to a struct of subcommands, runs the
// one they name and returns the exit status.
func run(ctx context.Context, root any, args []string, stdout, stderr io.Writer) int {
	helped := false
	parser, err := kong.New(root,
		kong.Name("blockyard"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		// Kong asks for the exit after it has printed help, then goes on parsing;
		// what it finds after that is of no interest.
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		demoVars(),
		benchVars(),
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
		return exitUsage
	}
	return exitFailed
}
