package join

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Agents, each with Engines and one pool, are 1000 and 8 by default. Blocks is how many blocks each engine
	// and each pool holds, default 2000.
	Agents, Engines, Blocks int
	// LinkBytes is what the router's link carries in a second, default 50 MiB.
	LinkBytes int
	// Restart also measures the restart of the router from its stored snapshot, while which each publisher has
	// replaced Missed documents of up to 250 blocks, default 4.
	Restart bool
	Missed  int
	// Patience bounds the start of the fleet, and the join, default 10 minutes.
	Patience time.Duration
	// Programs must be set, and so must NATSServer, a nats-server program.
	cluster.Programs
	NATSServer string
	// Dir is the parent of the directory of logs.
	Dir string
	// Out gets progress and figures.
	Out io.Writer
}

const (
	defaultAgents, defaultEngines, defaultBlocks = 1000, 8, 2000
	defaultLink                                  = 50 << 20
	defaultPatience                              = 10 * time.Minute
	defaultMissed                                = 4

	maxAgents, maxEngines, maxBlocks, maxMissed = 4096, 64, 1 << 20, 1000
	minLink, maxLink                            = 1 << 20, 10 << 30
)

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name       string
		value, max int
	}{{"agents", o.Agents, maxAgents}, {"engines", o.Engines, maxEngines}, {"blocks", o.Blocks, maxBlocks}, {"missed", o.Missed, maxMissed}} {
		if f.value < 0 || f.value > f.max {
			return fmt.Errorf("%s %d: want 1 to %d", f.name, f.value, f.max)
		}
	}
	if o.LinkBytes != 0 && (o.LinkBytes < minLink || o.LinkBytes > maxLink) {
		return fmt.Errorf("link %d bytes a second: want %d to %d", o.LinkBytes, minLink, maxLink)
	}
	if o.Patience < 0 {
		return fmt.Errorf("patience %s: must not be negative", o.Patience)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.Agents = cmp.Or(o.Agents, defaultAgents)
	o.Engines = cmp.Or(o.Engines, defaultEngines)
	o.Blocks = cmp.Or(o.Blocks, defaultBlocks)
	o.Missed = cmp.Or(o.Missed, defaultMissed)
	o.LinkBytes = cmp.Or(o.LinkBytes, defaultLink)
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o
}
