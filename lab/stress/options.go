package stress

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// DefaultDuration is Options.Duration when it is zero.
	DefaultDuration = 30 * time.Second
	// DefaultOps is Options.Ops when it is zero.
	DefaultOps = 1000
	// DefaultHostDir is Options.HostDir when it is empty and there is such a
	// directory.
	DefaultHostDir = "/dev/shm"

	maxDuration = 24 * time.Hour
	maxOps      = 1 << 20
)

// Options say what to run and where. The zero value of a field is the default
// that it names.
type Options struct {
	// Duration is how long streams are started for, default DefaultDuration. Each
	// configuration gets one whole stream in any case.
	Duration time.Duration
	// Seed makes the first stream, and its successors the next ones; 0 is a random
	// one.
	Seed uint64
	// Config names the one configuration to run; empty for all. A run of one does
	// without the negative control, and need not see everything.
	Config string
	// Ops is the number of operations in a stream, default DefaultOps.
	Ops int
	// Parallel is how many streams run at the same time, default 4.
	Parallel int
	// Dir is where the disk tiers go, default the temporary directory.
	Dir string
	// HostDir is where the host tiers go, default DefaultHostDir, or Dir where there
	// is no such directory.
	HostDir string
	// Out is where the report goes; it must be set.
	Out io.Writer
	// Live shows progress on Out, on one line that is written again and again.
	Live bool
	// Log is where the managers' warnings go; nil for nowhere.
	Log *zap.Logger
}

// Validate checks every field's range; the error names the first bad one.
func (o *Options) Validate() error {
	if o.Duration < 0 || o.Duration > maxDuration {
		return fmt.Errorf("duration %s: want 0s (default %s) to %s", o.Duration, DefaultDuration, maxDuration)
	}
	if o.Ops < 0 || o.Ops > maxOps {
		return fmt.Errorf("operations %d: want 0 (default %d) to %d", o.Ops, DefaultOps, maxOps)
	}
	if o.Parallel < 0 {
		return fmt.Errorf("parallel streams %d: want 0 (default 4) or more", o.Parallel)
	}
	if o.Config != "" && !slices.ContainsFunc(variants(), func(v variant) bool { return v.name == o.Config }) {
		return fmt.Errorf("configuration %q: want one of %s", o.Config, variantNames())
	}
	if o.Out == nil {
		return fmt.Errorf("output: must be set")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	for o.Seed == 0 {
		o.Seed = kv.RandomID()
	}
	if o.Ops == 0 {
		o.Ops = DefaultOps
	}
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.HostDir == "" {
		o.HostDir = DefaultHostDir
		if st, err := os.Stat(o.HostDir); err != nil || !st.IsDir() {
			o.HostDir = o.Dir
		}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// chosen are the configurations to run.
func (o *Options) chosen() []variant {
	return slices.DeleteFunc(variants(), func(v variant) bool { return o.Config != "" && v.name != o.Config })
}
