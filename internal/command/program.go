package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/pebbe/zmq4"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/command/admin"
	"github.com/blockyard-ai/blockyard/internal/command/inspect"
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
	ctx, stop := signalContext()
	defer stop()
	return p.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs the subcommand that args name and returns the exit status: 0, ExitUsage for a wrong
// command line, or ExitFailed. ctx ends the subcommand. An error is one line on stderr.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	helped := false
	parser, err := kong.New(p.Root,
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Writers(stdout, stderr),
		// Kong asks for the exit after it has printed help, then goes on parsing. Errors
		// of that parsing do not count.
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		routerDefaults(), p.Vars,
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

// report writes err to stderr as one line and returns the exit status: ExitUsage for a wrong command
// line, the error's own status where it has one, ExitFailed for other errors, 0 without an error.
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
	var own interface{ ExitStatus() int }
	if errors.As(err, &own) {
		return own.ExitStatus()
	}
	return ExitFailed
}

// logLevelVariable names the environment variable that NewLogger reads.
const logLevelVariable = "BLOCKYARD_LOG_LEVEL"

// signalContext returns a context that ends at the first SIGINT, SIGTERM or SIGHUP:
// a terminal that closes stops a process as orderly as a supervisor does. Under
// nohup SIGHUP stays ignored. After the first signal signals have their default
// effect again, so that a second one kills a process that is slow to drain. The
// caller must call the returned function when it is done.
func signalContext() (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// NewLogger returns a logger named name that writes to standard error: lines
// for people when that is a terminal, JSON otherwise.
func NewLogger(name string) (*zap.Logger, error) {
	level, err := logLevel(os.Getenv(logLevelVariable))
	if err != nil {
		return nil, err
	}
	core := zapcore.NewCore(logEncoder(IsTerminal(os.Stderr)), zapcore.Lock(os.Stderr), level)
	return zap.New(core).Named(name), nil
}

// logLevel returns the log level of that name; empty is info. Levels above error are refused.
func logLevel(name string) (zapcore.Level, error) {
	if name == "" {
		return zapcore.InfoLevel, nil
	}
	level, err := zapcore.ParseLevel(name)
	if err != nil || level > zapcore.ErrorLevel {
		return 0, fmt.Errorf("%s %q: want debug, info, warn or error", logLevelVariable, name)
	}
	return level, nil
}

// logEncoder returns the encoder of log lines: text for people when people is true, and
// else JSON.
func logEncoder(people bool) zapcore.Encoder {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	c.EncodeDuration = zapcore.StringDurationEncoder
	if people {
		c.EncodeLevel = zapcore.CapitalLevelEncoder
		return zapcore.NewConsoleEncoder(c)
	}
	return zapcore.NewJSONEncoder(c)
}

// IsTerminal reports whether f is a terminal; other character devices, such as
// /dev/null, are not.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// WriteReady writes v as one line of JSON to standard output. A subcommand
// calls it once, when it serves; the parent process waits for that line.
func WriteReady(v any) error {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		return fmt.Errorf("ready line: %w", err)
	}
	return nil
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
