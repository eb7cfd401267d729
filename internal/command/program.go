package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/internal/command/admin"
	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/internal/command/top"
)

// Program is the command line of one binary.
type Program struct {
	// Name is the name that users type. Description is the text below it in the help.
	Name, Description string
	// Version is set by the linker; empty in a plain go build.
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
	Agent      Agent              `cmd:"" help:"Run the node agent: host and disk tiers, engine sessions, events."`
	Router     Router             `cmd:"" help:"Run the router: choose a worker for each request."`
	Demo       labCommand         `cmd:"" passthrough:"" help:"Run agents, simulated engines and a router on this machine; check every byte."`
	Bench      labCommand         `cmd:"" passthrough:"" help:"Measure Blockyard on this machine."`
	Connector  connectorConfigCmd `cmd:"" name:"connector-config" help:"Print the engine's configuration for the connector."`
	Inspect    inspectCmd         `cmd:"" help:"Show an agent's or a router's events: health, gaps, drops, cursors, workers."`
	Top        top.Command        `cmd:"" help:"Show a router and its agents in a terminal: tiers, rates, workers, queues, events."`
	Admin      admin.Command      `cmd:"" help:"Change an agent or a router: pin, evict, reset, flush, drain, snapshot."`
	Doctor     doctorCmd          `cmd:"" help:"Find what is wrong with a node, its agent, engines, NATS and a router, and name what to change."`
	Config     configCmd          `cmd:"" help:"Show or check the settings of agent and router."`
	Completion completionCmd      `cmd:"" help:"Print a script that completes commands, flags and values in a shell."`
	Man        manCmd             `cmd:"" help:"Print manual pages."`
	Version    Version            `cmd:"" help:"Show the version of this binary and of what it is linked with."`
	SimEngine  labCommand         `cmd:"" passthrough:"" hidden:"" help:"Run one simulated engine; the demo starts these."`
}

// inspectCmd is "blockyard inspect".
type inspectCmd struct {
	State  inspect.Command `cmd:"" default:"withargs" help:"Show health, gaps, drops, cursors and workers. This is the default."`
	Misses inspect.Misses  `cmd:"" help:"Show why the prompts of a router's last requests were not cached."`
}

// newProductRoot returns a command line for kong to parse into.
func newProductRoot() *productRoot {
	root := &productRoot{Router: NewRouter()}
	root.Config.Print.Router.Router = NewRouter()
	return root
}

// Product returns the program blockyard. version is set by the linker.
func Product(version string) Program {
	return Program{Name: "blockyard", Description: description, Version: version, Root: newProductRoot()}
}

// Exit statuses beside 0.
const (
	ExitFailed = 1
	ExitUsage  = 2
)

// Main runs the program on the arguments of this process until it ends or a
// signal does that, and returns the exit status.
func (p Program) Main() int {
	ctx, h, stop := process.SignalContext()
	defer stop()
	return p.run(ctx, h, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs the subcommand that args name and returns the exit status: 0, ExitUsage for a wrong
// command line, or ExitFailed. ctx ends the subcommand. An error is one line on stderr.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return p.run(ctx, nil, args, stdout, stderr)
}

// run is Run with the SIGHUPs of this process, nil for none.
func (p Program) run(ctx context.Context, h *process.Hangups, args []string, stdout, stderr io.Writer) int {
	helped := false
	parser, err := p.Parser(stdout, stderr, func(int) { helped = true },
		kong.Bind(build(p), &settingsSource{p, args, h}),
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

// Parser returns a parser of the program's command lines. exit is called after help was printed.
func (p Program) Parser(stdout, stderr io.Writer, exit func(int), options ...kong.Option) (*kong.Kong, error) {
	return kong.New(p.Root, append(options,
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Writers(stdout, stderr),
		// Kong asks for the exit after it has printed help, then goes on parsing. Errors
		// of that parsing do not count.
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		routerDefaults(), p.Vars,
	)...)
}

// settingsSource is where a command reads its settings again: the command line and the variables, which
// stay, and the file of --config, which may change.
type settingsSource struct {
	program Program
	args    []string
	hangups *process.Hangups // nil without
}

// parse returns the commands of the command line with the settings of now. The error names the file, the
// line, the setting, the value and the accepted values, as at a start.
func (s *settingsSource) parse() (*productRoot, error) {
	root := newProductRoot()
	p := s.program
	p.Root = root
	parser, err := p.Parser(io.Discard, io.Discard, func(int) {})
	if err != nil {
		return nil, fmt.Errorf("BUG: command line definition: %w", err)
	}
	_, err = parser.Parse(s.args)
	return root, err
}

// report writes err to stderr as one line and returns the exit status: ExitUsage for a wrong command
// line, the error's own status where it has one, ExitFailed for other errors, 0 without an error.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "blockyard: %s\n", process.OneLine(err))
	var usage *kong.ParseError
	if errors.As(err, &usage) {
		return ExitUsage
	}
	var own interface{ ExitStatus() int }
	if errors.As(err, &own) {
		return own.ExitStatus()
	}
	return ExitFailed
}

// labName is the program that has the commands of the lab.
const labName = "blockyard-lab"

// labCommand is a command of blockyard-lab under its name here: "blockyard demo"
// becomes the process "blockyard-lab demo".
type labCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of blockyard-lab; --help shows them."`
}

// Run runs a command of the lab: it replaces this process by the program blockyard-lab in the same
// directory, with the same arguments. It returns only when that fails.
func (c *labCommand) Run(command *kong.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	lab := filepath.Join(filepath.Dir(exe), labName)
	name := command.Selected().Name
	err = syscall.Exec(lab, append([]string{labName, name}, c.Args...), os.Environ())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %s is not beside this binary: want %s", name, labName, lab)
	}
	return fmt.Errorf("%s: run %s: %w", name, lab, err)
}

// Version is the command "version".
type Version struct{}

// build is the program that runs.
type build Program

// Run writes the versions to stdout: of the binary, of Go, and of libzmq, which is linked from the
// system.
func (Version) Run(b build, stdout io.Writer) error {
	info, _ := debug.ReadBuildInfo()
	major, minor, patch := zmq4.Version()
	_, err := fmt.Fprintf(stdout, "%-9s %s\ngo        %s %s/%s\nlibzmq    %d.%d.%d\n",
		b.Name, versionString(b.Version, info), runtime.Version(), runtime.GOOS, runtime.GOARCH, major, minor, patch)
	if err != nil {
		return fmt.Errorf("write version: %w", err)
	}
	return nil
}

// versionString returns the version that the linker set, else that of the module, else "devel". The
// commit follows when the build recorded one. info may be nil.
func versionString(linked string, info *debug.BuildInfo) string {
	v := linked
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if v == "" && info.Main.Version != "(devel)" {
		v = info.Main.Version
	}
	v = cmp.Or(v, "devel")
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if commit == "" {
		return v
	}
	return fmt.Sprintf("%s (commit %s%s)", v, commit, modified)
}
