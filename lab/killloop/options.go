package killloop

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// Defaults of Options.Kills and Options.HostDir.
	DefaultKills   = 50
	DefaultHostDir = "/dev/shm"
	maxKills       = 1000
)

// Options of a run.
type Options struct {
	// Kills is the number of kills of the agent, default DefaultKills.
	Kills int
	// Seed chooses the instants and the victims. Processes add randomness of their own:
	// one seed gives similar runs, not equal ones.
	Seed uint64
	// Dir is the parent of the directory with disk tier, socket and logs; empty is the
	// temporary directory. HostDir is the parent of the host tier's directory, on
	// tmpfs; default DefaultHostDir.
	Dir, HostDir string
	// Programs run the agent. Child is the command whose process calls Serve.
	cluster.Programs
	Child []string
	// Out gets the figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	if o.Kills < 0 || o.Kills > maxKills {
		return fmt.Errorf("kills %d: want 0 (default %d) to %d", o.Kills, DefaultKills, maxKills)
	}
	return nil
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Kills = cmp.Or(o.Kills, DefaultKills)
	o.HostDir = cmp.Or(o.HostDir, DefaultHostDir)
	o.Out = cmp.Or(o.Out, io.Discard)
	return o
}

const (
	// The agent is killed this long after it was ready, at random.
	minLife, maxLife = 20 * time.Millisecond, 400 * time.Millisecond
	// maxLead bounds the time from the kill of one engine to the kill of the agent.
	maxLead = 100 * time.Millisecond
	// One in engineKillOdds kills of the agent takes an engine along, and one follows
	// the kill of an engine.
	engineKillOdds = 5
	// Every sweepEvery-th life lasts until all sealed blocks were looked up. Every
	// wipeEvery-th kill takes all engines and the host tier along.
	sweepEvery, wipeEvery = 10, 12
	// checkedDocs bounds the documents that the checker looks up in a life that ends at
	// random.
	checkedDocs = 200

	// Tiers are larger than the stored blocks of a run. A life leaves time for about
	// storedPerKill bytes.
	extentBytes   = 4 << 20
	storedPerKill = 8 << 20
	minTierBytes  = 256 << 20
	// fullShare is the used share of a tier, in percent, at which the run fails.
	fullShare = 90

	// Limits of waiting: for a sweep, for the last sessions to end, for an orderly
	// stop.
	sweepTime  = 2 * time.Minute
	settleTime = 30 * time.Second
	stopTime   = 20 * time.Second
)
