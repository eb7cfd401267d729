package soak

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// DefaultDuration is Options.Duration when it is zero.
	DefaultDuration = 60 * time.Second
	maxDuration     = 24 * time.Hour
	maxRounds       = 1 << 20
)

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Duration is the time in which rounds are started, default DefaultDuration.
	Duration time.Duration
	// Rounds, if not 0, is the number of rounds, however long they take.
	Rounds int
	// Seed chooses faults, instants and prompts. Processes add randomness of their own:
	// one seed gives similar runs, not equal ones.
	Seed uint64
	// NoRepair refuses the router's questions for the whole run, without the short run
	// before. The run ends with a divergence, which is an error.
	NoRepair bool
	// Programs must be set, and so must NATSServer, a nats-server program.
	cluster.Programs
	NATSServer string
	// Dir and HostDir are the parents of cluster.MakeDirs.
	Dir, HostDir string
	// Out gets progress and figures.
	Out io.Writer

	// calm leaves out the faults, which a run without repair does not need.
	calm bool
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	switch {
	case o.Duration < 0 || o.Duration > maxDuration:
		return fmt.Errorf("duration %s: want 0s (default %s) to %s", o.Duration, DefaultDuration, maxDuration)
	case o.Rounds < 0 || o.Rounds > maxRounds:
		return fmt.Errorf("rounds %d: want 0 (as many as there is time for) to %d", o.Rounds, maxRounds)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	o.Out = cmp.Or(o.Out, io.Discard)
	return o
}

const (
	nodes   = 2
	engines = 3

	blockSize = 16
	// The documents stay on the device all the time. After the first seconds an
	// engine's replay does not reach back to them.
	deviceBlocks = 2560
	// speedUp makes an engine's step last a millisecond.
	speedUp = 5
	// bufferSteps is the length of an engine's replay: longer than an agent is away, shorter
	// than an engine lives. It is about four seconds: on a busy machine an agent takes more than
	// one to start. Blocks of events beyond the replay cannot be known again, because an
	// engine's list has no tokens.
	bufferSteps = 4096
	// dropFrames of the first eight times as many frames are left out.
	dropFrames = 4096

	// The tiers are small, so that blocks leave them.
	extentBytes = 256 << 10
	hostBytes   = 1 << 20
	diskBytes   = 2 << 20

	// A round has this much load, and this many faults at random instants of it.
	minLoad, maxLoad = 1500 * time.Millisecond, 3000 * time.Millisecond
	faultsPerRound   = 3
	maxBrokerAway    = 1500 * time.Millisecond
	maxAgentAway     = 300 * time.Millisecond
	maxRouterStopped = 2 * time.Second

	// patience is how long everything may take to come to rest, and blindPatience how
	// long a router that cannot ask is waited for.
	patience      = 40 * time.Second
	blindPatience = 3 * time.Second
	// returnTime bounds the way of an agent's engines back to the router.
	returnTime = 20 * time.Second
	// atOnce is what the new agent may take from then until the router knows what it
	// shall know, on a busy machine.
	atOnce    = 3 * time.Second
	lookEvery = 25 * time.Millisecond

	// minKept is the share of device residency that an agent's restart must keep.
	minKept = 0.99
)
