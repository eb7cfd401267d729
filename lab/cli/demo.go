package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/lab/demo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// demoCmd runs agents, engines and a router on this machine under a workload. Defaults
// come from demo.Defaults: a flag that is nil was not given. demoVars gives their values
// to the help.
type demoCmd struct {
	Nodes        *int           `help:"Agents (default ${demo_nodes})."`
	Engines      *int           `help:"Simulated engines, over all nodes (default ${demo_engines})."`
	Requests     *int           `aliases:"limit,trace-requests" help:"Requests to send, or lines of the trace to play (default ${demo_requests})."`
	Seed         *uint64        `help:"Selects the workload and the event frames that are left out (default ${demo_seed})."`
	SpeedUp      *float64       `help:"Divide simulated time by this (default ${demo_speed_up})."`
	PrefillRate  *int           `help:"Tokens that an engine prefills in a simulated second (default ${demo_prefill_rate})."`
	Trace        string         `placeholder:"FILE" help:"Play this trace in Mooncake's format instead of the built-in workload."`
	BlockSize    *int           `help:"Tokens in a block (default ${demo_block_size})."`
	DeviceBlocks *int           `help:"Device blocks of an engine (default ${demo_device_blocks}; fewer with few requests, twice as many with --hybrid)."`
	HostSize     *bytesize.Size `help:"Host tier of a node (default ${demo_host_size}; less with few requests)."`
	DiskSize     *bytesize.Size `help:"Disk tier of a node (default ${demo_disk_size})."`
	DropFrames   *int           `help:"Event frames that each engine leaves out on purpose (default ${demo_drop_frames})."`
	Dir          string         `placeholder:"DIR" help:"Directory of disk tiers and logs (default: the temporary directory)."`
	Report       string         `placeholder:"FILE" help:"Write the figures as JSON."`
	Hybrid       bool           `help:"Engines of a model with a sliding window beside full attention: one run, in which the router's credit is compared with what engines and agents find, at rest and after kills of an agent and an engine."`
	Only         string         `enum:"all,ours" default:"all" help:"Runs to make: all, or ours without the two for comparison."`
	KeepLogs     bool           `help:"Keep the logs of all processes even if nothing fails."`
	Selftest     bool           `help:"Instead of the demo, flip stored bytes and see that each is noticed; takes --dir, --report and --keep-logs only."`
}

// demoVars returns the values of the variables, like ${demo_nodes}, in the help texts of
// demoCmd's flags: the defaults, which may differ with --trace.
func demoVars() kong.Vars {
	plain, traced := demo.Defaults("", 0), demo.Defaults("trace", 0)
	vars := make(kong.Vars)
	for name, value := range map[string]func(*demo.Options) any{
		"nodes":         func(o *demo.Options) any { return o.Nodes },
		"engines":       func(o *demo.Options) any { return o.Engines },
		"requests":      func(o *demo.Options) any { return o.Requests },
		"seed":          func(o *demo.Options) any { return o.Seed },
		"speed_up":      func(o *demo.Options) any { return o.SpeedUp },
		"prefill_rate":  func(o *demo.Options) any { return o.PrefillRate },
		"block_size":    func(o *demo.Options) any { return o.BlockSize },
		"device_blocks": func(o *demo.Options) any { return o.DeviceBlocks },
		"host_size":     func(o *demo.Options) any { return bytesize.Size(o.HostBytes) },
		"disk_size":     func(o *demo.Options) any { return bytesize.Size(o.DiskBytes) },
		"drop_frames":   func(o *demo.Options) any { return o.DropFrames },
	} {
		text := fmt.Sprint(value(&plain))
		if with := fmt.Sprint(value(&traced)); with != text {
			text += ", with --trace " + with
		}
		vars["demo_"+name] = text
	}
	return vars
}

// Help implements kong's HelpProvider.
func (demoCmd) Help() string {
	return `The same requests are played three times with fresh processes: routed by cache, in turn, and without host and disk tiers. Every loaded block is compared byte by byte. At the end the router's index is compared with the blocks that engines and agents hold. The exit status is 1 when a byte is wrong, a tier was never used, a lost event was not repaired, the index differs, or the demo is interrupted.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *demoCmd) Validate(command *kong.Context) error {
	if c.Selftest {
		return checkSelftestFlags(command.Path)
	}
	o := c.options(io.Discard)
	return o.Validate()
}

// checkSelftestFlags returns an error that names the flags in path, the parsed command line, that
// have no effect with --selftest.
func checkSelftestFlags(path []*kong.Path) error {
	var unused []string
	for _, p := range path {
		if p.Flag == nil {
			continue
		}
		switch name := p.Flag.Name; name {
		case "selftest", "dir", "report", "keep-logs", "help":
		default:
			unused = append(unused, "--"+name)
		}
	}
	if len(unused) > 0 {
		return fmt.Errorf("--selftest: does not take %s, only --dir, --report and --keep-logs", strings.Join(unused, ", "))
	}
	return nil
}

// Run runs the demo, or its self-test. It starts a NATS server in this process and everything
// else as processes, and ends all of them.
func (c *demoCmd) Run(ctx context.Context, stdout io.Writer, r *root) (err error) {
	o := c.options(stdout)
	if o.Programs, err = r.programs(); err != nil {
		return err
	}
	log, err := process.NewLogger("demo")
	if err != nil {
		return err
	}
	nats, err := nats.StartEmbedded(nats.EmbeddedOptions{Log: log})
	if err != nil {
		return fmt.Errorf("embedded NATS server: %w", err)
	}
	defer nats.Close()
	o.NATSURL = nats.URL()
	if c.Selftest {
		return demo.Selftest(ctx, o)
	}
	return demo.Run(ctx, o)
}

// options returns the demo's options: the defaults, replaced by the flags that were given.
func (c *demoCmd) options(stdout io.Writer) demo.Options {
	requests := 0
	override(&requests, c.Requests)
	o := demo.Defaults(c.Trace, requests)
	if c.Hybrid {
		o.DeviceBlocks *= 2 // for two KV groups
	}
	override(&o.Requests, c.Requests) // a zero is for Validate to refuse
	o.Dir, o.Report = c.Dir, c.Report
	o.OnlyOurs, o.KeepLogs, o.Hybrid = c.Only == "ours", c.KeepLogs, c.Hybrid
	override(&o.Nodes, c.Nodes)
	override(&o.Engines, c.Engines)
	override(&o.Seed, c.Seed)
	override(&o.SpeedUp, c.SpeedUp)
	override(&o.PrefillRate, c.PrefillRate)
	override(&o.BlockSize, c.BlockSize)
	override(&o.DeviceBlocks, c.DeviceBlocks)
	override(&o.DropFrames, c.DropFrames)
	override(&o.HostBytes, (*uint64)(c.HostSize))
	override(&o.DiskBytes, (*uint64)(c.DiskSize))
	o.Out, o.Err = stdout, os.Stderr
	if f, ok := stdout.(*os.File); ok {
		o.Terminal = process.IsTerminal(f)
		o.Color = o.Terminal && os.Getenv("NO_COLOR") == ""
	}
	return o
}

// override sets field if a flag was given.
func override[T any](field *T, flag *T) {
	if flag != nil {
		*field = *flag
	}
}
