package killloop

import (
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// DefaultKills is Options.Kills when it is zero, DefaultHostDir Options.HostDir
	// when it is empty.
	DefaultKills   = 50
	DefaultHostDir = "/dev/shm"
	maxKills       = 1000
)

// Options say how long a run is and where it takes place.
type Options struct {
	// Kills is how often the agent is killed, default DefaultKills.
	Kills int
	// Seed chooses the instants and the victims; processes add randomness of their
	// own, so that the same seed gives a similar run and not the same one.
	Seed uint64
	// Dir is where the disk tier, the socket and the logs go, in a directory of the
	// run's own; empty is the temporary directory. HostDir is where the host tier
	// goes, likewise; it should be on tmpfs. Default DefaultHostDir.
	Dir, HostDir string
	// Programs run the agent. Child is the command whose process calls Serve.
	cluster.Programs
	Child []string
	// Out gets the figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	switch {
	case o.Kills < 0 || o.Kills > maxKills:
		return fmt.Errorf("kills %d: want 0 (default %d) to %d", o.Kills, DefaultKills, maxKills)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Kills == 0 {
		o.Kills = DefaultKills
	}
	if o.HostDir == "" {
		o.HostDir = DefaultHostDir
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o
}

const (
	// The agent is killed at a random instant this long after it was ready.
	minLife, maxLife = 20 * time.Millisecond, 400 * time.Millisecond
	// An engine that is killed alone dies this much before the agent, at most.
	maxLead = 100 * time.Millisecond
	// Of so many kills of the agent, one goes with an engine at the same instant,
	// and one with an engine shortly before.
	engineKillOdds = 5
	// Every sweepEvery-th life lasts until everything was looked for, every
	// wipeEvery-th kill takes all engines and the host tier along.
	sweepEvery, wipeEvery = 10, 12
	// checkedDocs bounds what is looked for in a life that ends at random.
	checkedDocs = 200

	// Tiers are larger than what a run stores: a kill leaves time for about
	// storedPerKill bytes.
	extentBytes   = 4 << 20
	storedPerKill = 8 << 20
	minTierBytes  = 256 << 20
	// fullShare is how much of a tier may be used before the run fails, in percent.
	fullShare = 90

	// Backstops: a sweep, the end of the last sessions, an
	// orderly stop.
	sweepTime  = 2 * time.Minute
	settleTime = 30 * time.Second
	stopTime   = 20 * time.Second
)
