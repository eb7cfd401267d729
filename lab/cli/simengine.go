package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// simEngineCmd runs one simulated engine until it is told to stop.
type simEngineCmd struct {
	WorkerID    uint64 `required:"" help:"Worker id that the router knows; not 0."`
	Rank        uint32 `help:"Data-parallel rank."`
	AgentSocket string `help:"Socket of the node's agent; empty for no agent." placeholder:"PATH"`
	HTTP        string `name:"http" default:"127.0.0.1:0" help:"Address of the HTTP interface."`
	Events      string `help:"Endpoint of the event frames; empty for any free port of this machine." placeholder:"tcp://HOST:PORT"`
	EventsTopic string `help:"Topic of the event frames."`

	Model        string `default:"simulated" help:"Name of the model."`
	DType        string `name:"dtype" default:"bfloat16" help:"Element type of the KV cache."`
	BlockSize    uint32 `default:"16" help:"Tokens in a block."`
	Layers       uint32 `default:"2" help:"Layers of the model."`
	OuterDim     uint32 `default:"2" help:"2 for K and V, 1 for one latent vector."`
	InnerDim     uint32 `default:"32" help:"Elements for each token, layer and outer index."`
	DTypeBytes   uint32 `name:"dtype-bytes" default:"2" help:"Bytes of one element."`
	Window       uint32 `help:"Tokens of a sliding window beside full attention, 0 for none."`
	DeviceBlocks int    `default:"512" help:"Blocks of device memory."`

	PrefillTokensPerSecond float64       `default:"20000" help:"Tokens that a step computes in a second."`
	StepBase               time.Duration `default:"5ms" help:"Shortest time of a step."`
	SpeedUp                float64       `default:"1" help:"Divide the time of every step by this."`
	MaxNumSeqs             int           `default:"64" help:"Requests that run at a time."`
	MaxNumBatchedTokens    int           `default:"2048" help:"Tokens of one step."`
	MaxWaiting             int           `default:"1024" help:"Requests that wait to run; more are refused."`
	LookupWait             time.Duration `default:"50ms" help:"Longest wait of a lookup for the agent's disk; negative does not wait."`

	DropFrames  int    `help:"Event frames to leave out, so that a gap must be repaired."`
	BufferSteps int    `default:"10000" help:"Event frames that can be replayed."`
	Seed        uint64 `help:"Seed of the choice of dropped frames."`
}

// Help implements kong's HelpProvider.
func (simEngineCmd) Help() string {
	return "A prefix-caching engine without a model: real block pool, events and connector, simulated time and values."
}

// simEngineReady is the line that says where the engine is.
type simEngineReady struct {
	Ready  bool   `json:"ready"`
	HTTP   string `json:"http"`
	Events string `json:"events"`
	Replay string `json:"replay"`
}

// Run runs a simulated engine until ctx ends. It writes the ready line with the engine's
// addresses to standard output.
func (c *simEngineCmd) Run(ctx context.Context) error {
	log, err := process.NewLogger("sim-engine")
	if err != nil {
		return err
	}
	e, err := engine.New(c.options(), log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var unheard error
	err = e.Run(ctx, func(at engine.Endpoints) {
		unheard = process.WriteReady(simEngineReady{Ready: true, HTTP: at.HTTP, Events: at.Events, Replay: at.Replay})
		if unheard != nil {
			stop() // the starter of the engine is gone
		}
	})
	return errors.Join(unheard, err)
}

// Validate checks the flags after parsing; kong reports its error as one of usage. It refuses
// zeros, because engine.Options takes a zero for the default.
func (c *simEngineCmd) Validate() error {
	for _, f := range []struct {
		flag string
		zero bool
		want string
	}{
		{"device-blocks", c.DeviceBlocks == 0, fmt.Sprintf("1 to %d", engine.MaxDeviceBlocks)},
		{"prefill-tokens-per-second", c.PrefillTokensPerSecond == 0, "more than 0"},
		{"step-base", c.StepBase == 0, fmt.Sprintf("more than 0s, at most %s", engine.MaxStepBase)},
		{"speed-up", c.SpeedUp == 0, "more than 0"},
		{"max-num-seqs", c.MaxNumSeqs == 0, fmt.Sprintf("1 to %d", engine.MaxSeqs)},
		{"max-num-batched-tokens", c.MaxNumBatchedTokens == 0, fmt.Sprintf("1 to %d", engine.MaxBatchedTokens)},
		{"max-waiting", c.MaxWaiting == 0, fmt.Sprintf("1 to %d", engine.MaxWaiting)},
		{"buffer-steps", c.BufferSteps == 0, fmt.Sprintf("1 to %d", engine.MaxBufferSteps)},
		{"lookup-wait", c.LookupWait == 0, fmt.Sprintf("more than 0s, at most %s, or less for no wait", engine.MaxLookupWait)},
	} {
		if f.zero {
			return fmt.Errorf("--%s 0: want %s", f.flag, f.want)
		}
	}
	return nil
}

// options returns the engine's options from the flags. Weights and layout are fixed, because a
// simulated engine has neither.
func (c *simEngineCmd) options() engine.Options {
	ns := kv.Namespace{
		Model: c.Model, Weights: "none", DType: c.DType,
		Layers: c.Layers, OuterDim: c.OuterDim, BlockSize: c.BlockSize, InnerDim: c.InnerDim, DTypeBytes: c.DTypeBytes,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "blockyard-sim-1",
	}
	if c.Window > 0 {
		one := kv.Group{BlockSize: c.BlockSize, BlockBytes: ns.BlockBytes(), Layers: c.Layers}
		sliding, full := one, one
		sliding.Kind, sliding.Window, full.Kind = string(kvgroup.Sliding), c.Window, string(kvgroup.Full)
		ns.Groups = []kv.Group{sliding, full} // the order of vLLM for a model whose first layer has the window
	}
	return engine.Options{
		Worker:      kv.Worker{ID: kv.WorkerID(c.WorkerID), Rank: kv.DPRank(c.Rank)},
		Namespace:   ns,
		AgentSocket: c.AgentSocket,
		HTTPAddr:    c.HTTP,
		Events:      c.Events, EventsTopic: c.EventsTopic,
		DeviceBlocks:     c.DeviceBlocks,
		PrefillRate:      c.PrefillTokensPerSecond,
		StepBase:         c.StepBase,
		SpeedUp:          c.SpeedUp,
		MaxSeqs:          c.MaxNumSeqs,
		MaxBatchedTokens: c.MaxNumBatchedTokens,
		MaxWaiting:       c.MaxWaiting,
		LookupWait:       c.LookupWait,
		BufferSteps:      c.BufferSteps,
		DropFrames:       c.DropFrames,
		Seed:             c.Seed,
	}
}
