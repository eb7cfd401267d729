package engine

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Options configure an Engine. The zero value of every field but Worker.ID and
// Namespace stands for the default in its comment.
type Options struct {
	// Worker is the worker that this engine is; its ID must not be 0.
	Worker kv.Worker
	// Namespace is what the engine serves; its BlockSize and geometry are those of
	// the device blocks.
	Namespace kv.Namespace
	// AgentSocket is the path of the agent's socket; empty for an engine without
	// an agent.
	AgentSocket string
	// HTTPAddr is where the HTTP interface listens. Default 127.0.0.1:0.
	HTTPAddr string
	// DeviceBlocks is the number of device blocks. Default 512.
	DeviceBlocks int
	// PrefillRate is how many tokens a step computes per second. Default 20000.
	PrefillRate float64
	// StepBase is the shortest duration of a step that computes anything. Default
	// 5 ms.
	StepBase time.Duration
	// SpeedUp divides every step's duration. Default 1.
	SpeedUp float64
	// MaxSeqs bounds the requests that are running, loading or looking up.
	// Default 64.
	MaxSeqs int
	// MaxBatchedTokens bounds the tokens of one step. Default 2048.
	MaxBatchedTokens int
	// MaxWaiting bounds the requests that wait to run. Default 1024.
	MaxWaiting int
	// LookupWait is how long the agent may keep a lookup for blocks to come from
	// disk. Default 50 ms; negative for no wait.
	LookupWait time.Duration
	// EventsTopic is the topic of event frames; vLLM's default is empty.
	EventsTopic string
	// BufferSteps is how many sent batches can be replayed. Default 10000.
	BufferSteps int
	// DropFrames is how many event frames are deliberately not sent live; they can
	// still be replayed.
	DropFrames int
	// Seed chooses the dropped frames.
	Seed uint64
}

// The largest values of the options of the same names, far above what a
// simulation needs.
const (
	MaxDeviceBlocks  = 1 << 24
	MaxSeqs          = 1 << 16
	MaxBatchedTokens = 1 << 24
	MaxWaiting       = 1 << 20
	MaxBufferSteps   = 1 << 20
	MaxDropFrames    = 1 << 12
	MaxStepBase      = time.Minute
	MaxLookupWait    = time.Minute

	maxDeviceBytes = 1 << 40
)

// withDefaults is o with every zero field replaced by its default.
func (o Options) withDefaults() Options {
	setDefault(&o.HTTPAddr, "127.0.0.1:0")
	setDefault(&o.DeviceBlocks, 512)
	setDefault(&o.PrefillRate, 20000)
	setDefault(&o.StepBase, 5*time.Millisecond)
	setDefault(&o.SpeedUp, 1)
	setDefault(&o.MaxSeqs, 64)
	setDefault(&o.MaxBatchedTokens, 2048)
	setDefault(&o.MaxWaiting, 1024)
	setDefault(&o.LookupWait, 50*time.Millisecond)
	setDefault(&o.BufferSteps, 10000)
	o.LookupWait = max(o.LookupWait, 0)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks every field; zero fields are checked as their defaults. The
// error names the first bad one.
func (o Options) Validate() error {
	o = o.withDefaults()
	if o.Worker.ID == 0 {
		return fmt.Errorf("worker id: 0 is not a worker")
	}
	if err := o.Namespace.Validate(); err != nil {
		return err
	}
	for _, c := range []struct {
		name        string
		v, min, max int
	}{
		{"device blocks", o.DeviceBlocks, 1, MaxDeviceBlocks},
		{"max num seqs", o.MaxSeqs, 1, MaxSeqs},
		{"max num batched tokens", o.MaxBatchedTokens, 1, MaxBatchedTokens},
		{"max waiting", o.MaxWaiting, 1, MaxWaiting},
		{"buffer steps", o.BufferSteps, 1, MaxBufferSteps},
		{"drop frames", o.DropFrames, 0, MaxDropFrames},
	} {
		if c.v < c.min || c.v > c.max {
			return fmt.Errorf("%s: %d is not in %d..%d", c.name, c.v, c.min, c.max)
		}
	}
	if !(o.PrefillRate > 0) {
		return fmt.Errorf("prefill tokens per second: %g is not positive", o.PrefillRate)
	}
	if !(o.SpeedUp > 0) {
		return fmt.Errorf("speed-up: %g is not positive", o.SpeedUp)
	}
	if o.StepBase < 0 || o.StepBase > MaxStepBase {
		return fmt.Errorf("step base: %s is not in 0s..%s", o.StepBase, MaxStepBase)
	}
	if o.LookupWait > MaxLookupWait {
		return fmt.Errorf("lookup wait: %s is not in 0s..%s", o.LookupWait, MaxLookupWait)
	}
	if b := uint64(o.DeviceBlocks) * o.Namespace.BlockBytes(); b > maxDeviceBytes {
		return fmt.Errorf("device blocks: %d blocks of %d bytes are %d bytes, more than %d",
			o.DeviceBlocks, o.Namespace.BlockBytes(), b, uint64(maxDeviceBytes))
	}
	return nil
}

// stepTime is how long a step over n tokens lasts.
func (o *Options) stepTime(n int) time.Duration {
	if n == 0 {
		return 0
	}
	compute := time.Duration(float64(n) / o.PrefillRate * float64(time.Second))
	return time.Duration(float64(max(o.StepBase, compute)) / o.SpeedUp)
}
