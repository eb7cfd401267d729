package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/lab/disk"
)

// benchCmd holds the measurements; each is a subcommand.
type benchCmd struct {
	Disk          benchDiskCmd     `cmd:"" help:"Measure disk tier, copies and lookups beside fio and memcpy."`
	Stress        stressCmd        `cmd:"" help:"Run random operations on the block manager under faults; check every byte."`
	KillLoop      killLoopCmd      `cmd:"" help:"Kill agents and engines while engines copy; check that all sealed blocks come back."`
	Events        benchEventsCmd   `cmd:"" help:"Measure the path of events: wire to wire, memory, age at the router."`
	SoakEvents    soakEventsCmd    `cmd:"" name:"soak-events" help:"Break the path of events; compare the router's index with the blocks that are held."`
	Front         benchFrontCmd    `cmd:"" help:"Measure what a front door adds to requests, beside other routers."`
	Index         benchIndexCmd    `cmd:"" help:"Measure the router's index and its decisions."`
	SoakIndex     soakIndexCmd     `cmd:"" name:"soak-index" help:"Run the router's index and scheduler for a long time; watch their memory."`
	IndexLog      indexLogCmd      `cmd:"" name:"index-log" help:"Make a log of events and prompts for bench index."`
	IndexPart     indexPartCmd     `cmd:"" name:"index-part" hidden:"" help:"Measure one part; bench index starts these."`
	Copier        benchCopierCmd   `cmd:"" hidden:"" help:"Copy blocks into shared memory; bench disk starts these."`
	EventConsumer eventConsumerCmd `cmd:"" hidden:"" help:"Follow an engine's events; bench events starts these."`
	FrontIdle     benchIdleCmd     `cmd:"" name:"front-idle" help:"Measure the memory of idle connections to a front door."`
	FrontStub     frontStubCmd     `cmd:"" name:"front-stub" hidden:"" help:"Be a worker server; bench front starts these."`
	Join          benchJoinCmd     `cmd:"" help:"Measure how a late router reads the blocks of a large fleet over a slow link."`
	JoinFleet     joinFleetCmd     `cmd:"" name:"join-fleet" hidden:"" help:"Be the agents of a fleet; bench join starts these."`
	KillLoopChild killLoopChildCmd `cmd:"" hidden:"" help:"Be an engine or a checker; bench kill-loop starts these."`
}

// benchVars returns the values of the variables, like ${bench_sizes}, in the defaults and help
// texts of benchCmd's flags.
func benchVars() kong.Vars {
	sizes := ""
	for i, s := range disk.DefaultSizes() {
		if i > 0 {
			sizes += ","
		}
		sizes += bytesize.Size(s).String()
	}
	return kong.Vars{
		"bench_host_dir":   disk.DefaultHostDir,
		"bench_seconds":    fmt.Sprint(disk.DefaultDuration.Seconds()),
		"bench_sizes":      sizes,
		"bench_round_size": bytesize.Size(disk.DefaultRoundBytes).String(),
		"bench_blocks":     fmt.Sprint(disk.DefaultBlocks),
	}
}

// benchDiskCmd measures the block manager.
type benchDiskCmd struct {
	Dir       string          `help:"Directory on the disk to measure (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir   string          `help:"Directory of the host tier, in memory." default:"${bench_host_dir}" type:"path"`
	Seconds   float64         `help:"Duration of the disk rounds of one block size." default:"${bench_seconds}"`
	Sizes     []bytesize.Size `help:"Block sizes, such as 1MiB,2MiB." default:"${bench_sizes}"`
	RoundSize bytesize.Size   `help:"Most bytes of one round." default:"${bench_round_size}"`
	Blocks    int             `help:"Blocks that are registered while lookups and pauses are measured." default:"${bench_blocks}"`
}

// Help implements kong's HelpProvider.
func (benchDiskCmd) Help() string {
	return `Rounds of the block manager's disk path alternate with rounds of fio on the same disk. Without fio a plain loop takes its place. Blocks that another process copies into shared memory alternate with memcpy. Then a pool with many blocks is opened and looked up. Ratios are ours to the ceiling, medians of rounds. The last line has the least ratio over the block sizes.`
}

// Validate implements kong's interface; its errors are errors of usage. It refuses
// zeros, which disk.Options takes for the default.
func (c *benchDiskCmd) Validate() error {
	o := c.options("", io.Discard)
	return cmp.Or(moreThanZero(c.Seconds > 0, "seconds", c.Seconds), moreThanZero(c.RoundSize != 0, "round-size", 0),
		moreThanZero(c.Blocks != 0, "blocks", c.Blocks), o.Validate())
}

// Run measures the disk tier with the flags' options and writes the results to stdout. It starts
// this binary again as the process that copies.
func (c *benchDiskCmd) Run(ctx context.Context, stdout io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	o := c.options(exe, stdout)
	if o.Log, err = process.NewLogger("bench"); err != nil {
		return err
	}
	r, err := disk.Run(ctx, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, r.Lines())
	return err
}

// options returns the benchmark's options from the flags. exe is this binary, which the benchmark
// starts again to copy blocks.
func (c *benchDiskCmd) options(exe string, stdout io.Writer) disk.Options {
	o := disk.Options{
		Dir: c.Dir, HostDir: c.HostDir, Duration: time.Duration(c.Seconds * float64(time.Second)),
		RoundBytes: uint64(c.RoundSize), Blocks: c.Blocks, Copier: []string{exe, "bench", "copier"}, Out: stdout,
	}
	for _, s := range c.Sizes {
		o.Sizes = append(o.Sizes, uint64(s))
	}
	return o
}

// benchCopierCmd is the other process of a copy.
type benchCopierCmd struct{}

// Run copies until standard input ends.
func (benchCopierCmd) Run(stdout io.Writer) error { return disk.ServeCopies(os.Stdin, stdout) }
