package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/lab/disk"
)

// benchCmd holds the measurements; each is a subcommand.
type benchCmd struct {
	Disk          benchDiskCmd     `cmd:"" help:"Compare the disk tier, copies and look-ups with what this machine can do."`
	Stress        stressCmd        `cmd:"" help:"Run random operations on the block manager under faults and check every byte."`
	KillLoop      killLoopCmd      `cmd:"" help:"Kill agents and engines while engines copy, and check what comes back."`
	Events        benchEventsCmd   `cmd:"" help:"Measure the path of events: wire to wire, memory, age at the router."`
	SoakEvents    soakEventsCmd    `cmd:"" name:"soak-events" help:"Break the path of events and compare what the router believes with what is held."`
	Index         benchIndexCmd    `cmd:"" help:"Measure the router's index and its decisions."`
	SoakIndex     soakIndexCmd     `cmd:"" name:"soak-index" help:"Run the router's index and scheduler for a long time and watch their memory."`
	IndexLog      indexLogCmd      `cmd:"" name:"index-log" help:"Make a log of events and prompts for bench index."`
	IndexPart     indexPartCmd     `cmd:"" name:"index-part" hidden:"" help:"Measure one part; bench index starts these."`
	Copier        benchCopierCmd   `cmd:"" hidden:"" help:"Copy blocks into shared memory; bench disk starts these."`
	EventConsumer eventConsumerCmd `cmd:"" hidden:"" help:"Follow an engine's events; bench events starts these."`
	KillLoopChild killLoopChildCmd `cmd:"" hidden:"" help:"Be an engine or a checker; bench kill-loop starts these."`
}

// benchVars returns the defaults that the flags of benchCmd mention.
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
	Seconds   float64         `help:"How long the disk rounds of one block size go on." default:"${bench_seconds}"`
	Sizes     []bytesize.Size `help:"Block sizes, such as 1MiB,2MiB." default:"${bench_sizes}"`
	RoundSize bytesize.Size   `help:"What one round moves at most." default:"${bench_round_size}"`
	Blocks    int             `help:"Blocks that are registered while look-ups and pauses are measured." default:"${bench_blocks}"`
}

// Help implements kong's HelpProvider.
func (benchDiskCmd) Help() string {
	return `Rounds of the block manager's own disk path and of fio (or of a plain loop where fio is not installed) alternate on the same disk; so do blocks that another process copies into shared memory and plain memcpy. Then a pool with many blocks is opened, looked up and collected. Ratios are ours to the ceiling's, medians of rounds; the last line has the least over the block sizes.`
}

// Validate implements kong's interface; its errors are errors of usage. It
// refuses zeros that disk.Options would take for "the default", which has been
// filled in already.
func (c *benchDiskCmd) Validate() error {
	switch {
	case !(c.Seconds > 0):
		return fmt.Errorf("--seconds %g: want more than 0", c.Seconds)
	case c.RoundSize == 0:
		return fmt.Errorf("--round-size 0: want more than 0")
	case c.Blocks == 0:
		return fmt.Errorf("--blocks 0: want more than 0")
	}
	o := c.options("", io.Discard)
	return o.Validate()
}

// Run measures and prints.
func (c *benchDiskCmd) Run(ctx context.Context, stdout io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	o := c.options(exe, stdout)
	if o.Log, err = command.NewLogger("bench"); err != nil {
		return err
	}
	r, err := disk.Run(ctx, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, r.Lines())
	return err
}

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
