package index

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index/loggen"
)

const (
	// The defaults of the options of the same names.
	DefaultRounds    = 3
	DefaultBusy      = 2 * time.Second
	DefaultDecisions = 300

	maxRounds    = 99
	maxBusy      = 10 * time.Minute
	maxDecisions = 1_000_000
	// Unpinned, as Options.CPU, leaves it to the kernel where processes run.
	Unpinned = -1
	maxCPU   = 1023
)

// Part is one measurement, in a process of its own.
type Part string

// The parts; see the package's documentation.
const (
	PartEvents  Part = "events"
	PartMixed   Part = "mixed"
	PartLookups Part = "lookups"
	PartBusy    Part = "busy"
	PartVisible Part = "visible"
	PartMemory  Part = "memory"
	PartScore   Part = "score"
	PartSelect  Part = "select"
)

// logParts are measured for each log, decisionParts once.
func logParts() []Part {
	return []Part{PartEvents, PartMixed, PartLookups, PartBusy, PartVisible, PartMemory}
}

func decisionParts() []Part { return []Part{PartScore, PartSelect} }

// repeated says whether a part is measured once a round. The others take their own
// many samples.
func (p Part) repeated() bool { return p == PartEvents || p == PartMixed }

// concurrent says whether a part needs two processors.
func (p Part) concurrent() bool { return p == PartBusy || p == PartVisible }

// Options say what is measured and with what. The zero value of a field that has a
// default is that.
type Options struct {
	// Logs are paths of op logs; the last line is about the last one. Without any,
	// three are made from Generate, in the temporary directory Dir: the worst, an
	// unfriendly one, and one as Generate says.
	Logs     []string
	Generate loggen.Options
	Dir      string
	// Rounds is how often throughput is measured, odd, 1..99, default
	// DefaultRounds; medians count.
	Rounds int
	// Busy is how long lookups beside a writer, and ages of events, are measured
	// at least, default DefaultBusy.
	Busy time.Duration
	// Decisions is how many decisions are timed in each case, 1..1,000,000, default
	// DefaultDecisions.
	Decisions int
	// CPU is the processor that parts with one goroutine run on, collector
	// included, or Unpinned.
	CPU int
	// Child is the command that measures one part: it calls ServePart.
	Child []string
	// Out gets the figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	c := o.withDefaults()
	switch {
	case c.Rounds < 1 || c.Rounds > maxRounds || c.Rounds%2 == 0:
		return fmt.Errorf("rounds %d: want an odd number of 1 to %d", c.Rounds, maxRounds)
	case c.Busy < 0 || c.Busy > maxBusy:
		return fmt.Errorf("busy %s: want 0s (default %s) to %s", c.Busy, DefaultBusy, maxBusy)
	case c.Decisions < 1 || c.Decisions > maxDecisions:
		return fmt.Errorf("decisions %d: want 1 to %d", c.Decisions, maxDecisions)
	case c.CPU < Unpinned || c.CPU > maxCPU:
		return fmt.Errorf("cpu %d: want %d (any) to %d", c.CPU, Unpinned, maxCPU)
	case len(c.Child) == 0:
		return fmt.Errorf("child is empty: want the command that measures a part")
	case slices.Contains(c.Logs, ""):
		return fmt.Errorf("log %d: the path is empty", slices.Index(c.Logs, ""))
	}
	return c.Generate.Validate()
}

func (o Options) withDefaults() Options {
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds
	}
	if o.Busy == 0 {
		o.Busy = DefaultBusy
	}
	if o.Decisions == 0 {
		o.Decisions = DefaultDecisions
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o
}
