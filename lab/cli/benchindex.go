package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
)

// indexLogFlags shape an op log that is made.
type indexLogFlags struct {
	Seed     uint64  `help:"Selects the log." default:"1"`
	Engines  int     `help:"Engines." default:"32"`
	Pool     int     `help:"Blocks that each engine can hold." default:"16384"`
	Requests int     `help:"Prompts that come." default:"8000"`
	Affinity float64 `help:"Probability that a request goes to the engine with the deepest match." default:"0.5"`
}

func (f *indexLogFlags) options() loggen.Options {
	return loggen.Options{Seed: f.Seed, Engines: f.Engines, Pool: f.Pool, Requests: f.Requests, Affinity: f.Affinity}
}

// validate refuses zeros, which loggen.Options would take for "the default".
func (f *indexLogFlags) validate() error {
	switch {
	case f.Engines == 0:
		return fmt.Errorf("--engines 0: want more than 0")
	case f.Pool == 0:
		return fmt.Errorf("--pool 0: want more than 0")
	case f.Requests == 0:
		return fmt.Errorf("--requests 0: want more than 0")
	}
	return f.options().Validate()
}

// benchIndexCmd measures the router's index and its decisions.
type benchIndexCmd struct {
	Log       []string      `help:"Op log to replay; several give a row each, and the last line is about the last (default: three logs that are made)." type:"path" placeholder:"FILE"`
	Rounds    int           `help:"How often throughput is measured; odd." default:"3"`
	Busy      float64       `help:"Seconds that lookups beside a writer, and ages of events, are measured at least." default:"2"`
	Decisions int           `help:"Decisions that are timed in each case." default:"300"`
	CPU       int           `name:"cpu" help:"Processor that everything without a second goroutine runs on, collector included (default: any)." default:"-1"`
	Dir       string        `help:"Directory of the logs that are made (default: the temporary directory)." type:"path" placeholder:"DIR"`
	Made      indexLogFlags `embed:""`
}

// Help implements kong's HelpProvider.
func (benchIndexCmd) Help() string {
	return `Events applied, events and queries in the order of a log, the time of a query at rest and beside a writer, the age of an event when a reader sees it, and memory for each block that a worker holds; then one decision for a prompt of 240,000 tokens that 96 workers hold, and the choice among 10,000 workers. Each is measured in a process of its own. All answers must add up to what the log says. Without a log three are made: one as production traffic is shaped, one whose prompts part ways anywhere, and one that besides has events of one block and removals from anywhere.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchIndexCmd) Validate() error {
	switch {
	case !(c.Busy > 0):
		return fmt.Errorf("--busy %g: want more than 0", c.Busy)
	case c.Decisions == 0:
		return fmt.Errorf("--decisions 0: want more than 0")
	case c.Rounds == 0:
		return fmt.Errorf("--rounds 0: want more than 0")
	}
	if err := c.Made.validate(); err != nil {
		return err
	}
	o := c.options("blockyard", io.Discard)
	return o.Validate()
}

// Run measures and prints.
func (c *benchIndexCmd) Run(ctx context.Context, stdout io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	return index.Run(ctx, c.options(exe, stdout))
}

func (c *benchIndexCmd) options(exe string, stdout io.Writer) index.Options {
	return index.Options{
		Logs: c.Log, Rounds: c.Rounds, Busy: time.Duration(c.Busy * float64(time.Second)), CPU: c.CPU, Decisions: c.Decisions,
		Dir: c.Dir, Generate: c.Made.options(), Child: []string{exe, "bench", "index-part"}, Out: stdout,
	}
}

// indexPartCmd is the process of one part.
type indexPartCmd struct{}

// Run measures the part that standard input asks for.
func (indexPartCmd) Run(ctx context.Context, stdout io.Writer) error {
	return index.ServePart(ctx, os.Stdin, stdout)
}

// indexLogCmd makes an op log.
type indexLogCmd struct {
	Out   string        `arg:"" help:"File to write." type:"path"`
	Made  indexLogFlags `embed:""`
	Forks float64       `help:"Probability that a turn takes back a part of its conversation."`
	Align int           `help:"Multiple of blocks at which prompts part ways; 1 is anywhere." default:"32"`
	Chunk int           `help:"Most blocks of one stored event." default:"128"`
	Order string        `help:"How engines evict: ${enum}." enum:"tail-first,shuffled,scattered" default:"tail-first"`
}

// Help implements kong's HelpProvider.
func (indexLogCmd) Help() string {
	return `Engines with prefix caches, conversations with shared beginnings, and the answers of a naive index. An index of runs finds it hard when prompts part ways anywhere, when events are of one block, and when blocks go in any order: "shuffled" within an event, "scattered" also between events, so that prompts have holes.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *indexLogCmd) Validate() error {
	switch {
	case c.Align == 0:
		return fmt.Errorf("--align 0: want more than 0")
	case c.Chunk == 0:
		return fmt.Errorf("--chunk 0: want more than 0")
	}
	if err := c.Made.validate(); err != nil {
		return err
	}
	return c.options().Validate()
}

func (c *indexLogCmd) options() loggen.Options {
	o := c.Made.options()
	o.Forks, o.Align, o.Chunk, o.Order = c.Forks, c.Align, c.Chunk, loggen.Order(c.Order)
	return o
}

// Run makes the log.
func (c *indexLogCmd) Run() error { return index.MakeLog(c.Out, c.options()) }
