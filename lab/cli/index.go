package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/lab/index/soak"
)

// indexLogFlags shape an op log that is made.
type indexLogFlags struct {
	Seed     uint64  `help:"Seed of the log." default:"1"`
	Engines  int     `help:"Engines in the log." default:"32"`
	Pool     int     `help:"Blocks that each engine can hold." default:"16384"`
	Requests int     `help:"Prompts in the log." default:"8000"`
	Affinity float64 `help:"Probability that a request goes to the engine with the deepest match." default:"0.5"`
}

func (f *indexLogFlags) options() loggen.Options {
	return loggen.Options{Seed: f.Seed, Engines: f.Engines, Pool: f.Pool, Requests: f.Requests, Affinity: f.Affinity}
}

// validate refuses zeros, which loggen.Options would take for "the default".
func (f *indexLogFlags) validate() error {
	return cmp.Or(moreThanZero(f.Engines != 0, "engines", f.Engines), moreThanZero(f.Pool != 0, "pool", f.Pool),
		moreThanZero(f.Requests != 0, "requests", f.Requests), f.options().Validate())
}

// benchIndexCmd measures the router's index and its decisions.
type benchIndexCmd struct {
	Log       []string      `help:"Op log to replay; may be given several times. Each gives a row; the last line is about the last log (default: four logs that are made)." type:"path" placeholder:"FILE"`
	Rounds    int           `help:"Measurements of throughput; odd." default:"3"`
	Busy      float64       `help:"Least seconds of measuring lookups beside a writer, and ages of events." default:"2"`
	Decisions int           `help:"Decisions that are timed in each case." default:"300"`
	CPU       int           `name:"cpu" help:"Processor for parts with one goroutine, collector included (default: any)." default:"-1"`
	Dir       string        `help:"Directory of the logs that are made (default: the temporary directory)." type:"path" placeholder:"DIR"`
	Made      indexLogFlags `embed:""`
}

// Help implements kong's HelpProvider.
func (benchIndexCmd) Help() string {
	return `Events applied, events and queries in the order of a log, the time of a query at rest and beside a writer, the age of an event when a reader sees it, and memory for each block that a worker holds; then one decision for a prompt of 240,000 tokens that 96 workers hold, and the choice among 10,000 workers. Each is measured in a process of its own. All answers must add up to what the log says. Without a log four are made: one as production traffic is shaped, the same with events of one block, one whose prompts part ways anywhere, and one that besides has events of one block and removals from anywhere.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchIndexCmd) Validate() error {
	o := c.options("blockyard", io.Discard)
	return cmp.Or(moreThanZero(c.Busy > 0, "busy", c.Busy), moreThanZero(c.Decisions != 0, "decisions", c.Decisions),
		moreThanZero(c.Rounds != 0, "rounds", c.Rounds), c.Made.validate(), o.Validate())
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
	Forks float64       `help:"Probability that a turn drops the end of its conversation."`
	Align int           `help:"Multiple of blocks at which prompts part ways; 1 is anywhere." default:"32"`
	Chunk int           `help:"Most blocks in one stored event." default:"128"`
	Order string        `help:"How engines evict: ${enum}." enum:"tail-first,shuffled,scattered" default:"tail-first"`
}

// Help implements kong's HelpProvider.
func (indexLogCmd) Help() string {
	return `Engines with prefix caches, conversations with shared beginnings, and the answers of a naive index. An index of runs finds it hard when prompts part ways anywhere, when events are of one block, and when blocks go in any order: "shuffled" within an event, "scattered" also between events, so that prompts have holes.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *indexLogCmd) Validate() error {
	return cmp.Or(moreThanZero(c.Align != 0, "align", c.Align), moreThanZero(c.Chunk != 0, "chunk", c.Chunk), c.Made.validate(), c.options().Validate())
}

func (c *indexLogCmd) options() loggen.Options {
	o := c.Made.options()
	o.Forks, o.Align, o.Chunk, o.Order = c.Forks, c.Align, c.Chunk, loggen.Order(c.Order)
	return o
}

// Run makes the log.
func (c *indexLogCmd) Run() error { return index.MakeLog(c.Out, c.options()) }

// soakIndexCmd runs index and scheduler for a long time.
type soakIndexCmd struct {
	Seconds  float64 `help:"Duration in seconds." default:"600"`
	Rate     int     `help:"Blocks that are stored or removed a second." default:"100000"`
	Lookups  int     `help:"Prompts that are looked up a second; one in ten is sent to a worker." default:"5000"`
	Workers  int     `help:"Workers." default:"32"`
	Pools    int     `help:"Pools that workers belong to." default:"8"`
	Pool     int     `help:"Blocks that each worker and each pool can hold." default:"8192"`
	Sample   float64 `help:"Seconds between two samples of heap and resident memory." default:"10"`
	MaxSlope float64 `help:"Largest growth of heap and resident memory in a minute, in per cent." default:"1"`
	Seed     *uint64 `help:"Seed of prompts and times (default: a random one, which is printed)."`
}

// Help implements kong's HelpProvider.
func (soakIndexCmd) Help() string {
	return `Engines and pools store and remove blocks at a fixed rate; meanwhile prompts are looked up and sent to workers, owners leave and others come, dumps replace an owner's blocks, and owners lose all of them. The exit status is 1 when heap or resident memory grows after the first fifth of the run, and when the index does not hold in the end exactly what it was told. Runs of less than two minutes are not judged by their slopes.`
}

// Validate checks the flags after parsing; kong reports its error as one of usage. It refuses
// zeros, because soak.Options takes a zero for the default.
func (c *soakIndexCmd) Validate() error {
	for _, f := range []struct {
		flag  string
		value float64
	}{
		{"seconds", c.Seconds}, {"rate", float64(c.Rate)}, {"lookups", float64(c.Lookups)}, {"workers", float64(c.Workers)},
		{"pools", float64(c.Pools)}, {"pool", float64(c.Pool)}, {"sample", c.Sample}, {"max-slope", c.MaxSlope},
	} {
		if err := moreThanZero(f.value > 0, f.flag, f.value); err != nil {
			return err
		}
	}
	o := c.options(0, io.Discard)
	return o.Validate()
}

// Run soaks, compares and prints.
func (c *soakIndexCmd) Run(ctx context.Context, stdout io.Writer) error {
	seed := rand.Uint64N(1 << 32)
	override(&seed, c.Seed)
	return soak.Run(ctx, c.options(seed, stdout))
}

func (c *soakIndexCmd) options(seed uint64, stdout io.Writer) soak.Options {
	return soak.Options{
		Duration: time.Duration(c.Seconds * float64(time.Second)), Rate: c.Rate, Lookups: c.Lookups,
		Workers: c.Workers, Pools: c.Pools, Pool: c.Pool, Seed: seed,
		Sample: time.Duration(c.Sample * float64(time.Second)), MaxSlope: c.MaxSlope, Out: stdout,
	}
}
