package fleet

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// DefaultDuration, DefaultRouters and DefaultQuiet are those of Options.
	DefaultDuration = 60 * time.Second
	DefaultRouters  = 3
	DefaultQuiet    = 5 * time.Second

	maxDuration = 24 * time.Hour
	maxRounds   = 1 << 20
	maxRouters  = 16
)

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Duration is the time in which rounds are started, default DefaultDuration. Rounds, if not 0, is
	// the number of rounds, however long they take.
	Duration time.Duration
	Rounds   int
	// Routers is the number of routers, 2 to 16, default DefaultRouters.
	Routers int
	// Quiet is the time without load after which all routers must agree, default DefaultQuiet. Patience
	// is more time for that: the lists of bookings are not read at one instant, and a busy machine may
	// not run every process.
	Quiet, Patience time.Duration
	// Seed chooses faults, instants and prompts. Processes add randomness of their own: one seed gives
	// similar runs, not equal ones.
	Seed uint64
	// Seeds are the simulated runs of which the times to the first token are compared; 0 compares none.
	Seeds int
	// Programs must be set, and so must NATSServer, a nats-server program.
	cluster.Programs
	NATSServer string
	// Dir and HostDir are the parents of cluster.MakeDirs.
	Dir, HostDir string
	// Out gets progress and figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	switch {
	case o.Duration < 0 || o.Duration > maxDuration:
		return fmt.Errorf("duration %s: want 0s (default %s) to %s", o.Duration, DefaultDuration, maxDuration)
	case o.Rounds < 0 || o.Rounds > maxRounds:
		return fmt.Errorf("rounds %d: want 0 (as many as there is time for) to %d", o.Rounds, maxRounds)
	case o.Routers != 0 && (o.Routers < 2 || o.Routers > maxRouters):
		return fmt.Errorf("routers %d: want 2 to %d", o.Routers, maxRouters)
	case o.Quiet < 0 || o.Patience < 0:
		return fmt.Errorf("quiet %s, patience %s: must not be negative", o.Quiet, o.Patience)
	case o.Seeds < 0 || o.Seeds > 100:
		return fmt.Errorf("seeds %d: want 0 (no simulation) to 100", o.Seeds)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	o.Routers = cmp.Or(o.Routers, DefaultRouters)
	o.Quiet = cmp.Or(o.Quiet, DefaultQuiet)
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o
}

const (
	nodes, engines = 2, 4

	blockSize    = 16
	deviceBlocks = 2048
	// speedUp makes an engine's step last a millisecond.
	speedUp                           = 5
	extentBytes, hostBytes, diskBytes = 256 << 10, 1 << 20, 1 << 20

	// A round has this many faults, each after a part of the load.
	faultsPerRound = 3
	loadPart       = 1500 * time.Millisecond
	// maxAway is the longest time that a killed process is away.
	maxAway = 1500 * time.Millisecond

	// stopTime bounds the orderly end of a router.
	stopTime = 30 * time.Second

	lookEvery = 100 * time.Millisecond
)
