package loggen

import (
	"cmp"
	"fmt"

	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

// Order is the order in which an engine evicts.
type Order string

const (
	// TailFirst evicts the blocks of the least recently used prompt from its end, so
	// that held blocks are always whole prefixes.
	TailFirst Order = "tail-first"
	// Shuffled evicts the same blocks and shuffles the blocks of one event.
	Shuffled Order = "shuffled"
	// Scattered evicts the blocks of a prompt in any order, so that prompts have holes
	// that later requests fill.
	Scattered Order = "scattered"
)

// Options shape a log. Brackets give the defaults of zero values.
type Options struct {
	// Seed selects the log.
	Seed uint64
	// Engines is the number of engines, 1..4,096 [32], Pool the blocks that each can
	// hold, 16..1,048,576 [16,384].
	Engines, Pool int
	// Requests is the number of prompts, 1..1,000,000 [8,000].
	Requests int
	// Sessions is the number of concurrent conversations, 1..4,096 [256]; each
	// allocates the longest prompt at the start. Prefixes is the number of beginnings
	// that they share, 1..65,536 [64].
	Sessions, Prefixes int
	// MaxPrompt bounds prompts, in blocks, 16..65,536 [8,192].
	MaxPrompt int
	// Affinity is the probability that a request goes to the engine with the deepest
	// match, 0..1. Otherwise it goes to a random engine.
	Affinity float64
	// Forks is the probability that a turn drops the end of its conversation, 0..1.
	Forks float64
	// Align is the multiple of blocks at which prompts part ways, 1..1,024 [32].
	Align int
	// Chunk bounds the blocks of a stored event, 1..65,536 [128].
	Chunk int
	// Order is how engines evict [TailFirst].
	Order Order
}

// blockTokens is in the header of a log. Nothing depends on it.
const blockTokens = 16

// WithDefaults returns o with the defaults of its zero fields.
func (o Options) WithDefaults() Options {
	for _, f := range []struct {
		value    *int
		fallback int
	}{
		{&o.Engines, 32}, {&o.Pool, 16384}, {&o.Requests, 8000}, {&o.Sessions, 256}, {&o.Prefixes, 64},
		{&o.MaxPrompt, 8192}, {&o.Align, 32}, {&o.Chunk, 128},
	} {
		if *f.value == 0 {
			*f.value = f.fallback
		}
	}
	o.Order = cmp.Or(o.Order, TailFirst)
	return o
}

// Unfriendly returns o without two things that help an index of runs: prompts part
// anywhere, and the removals of an event are shuffled.
func (o Options) Unfriendly() Options {
	o.Align, o.Forks, o.Order = 1, 0.5, Shuffled
	return o
}

// Worst returns o with nothing that helps an index of runs. In addition to Unfriendly,
// every stored event has one block, and prompts have holes.
func (o Options) Worst() Options {
	o.Align, o.Forks, o.Order, o.Chunk = 1, 0.5, Scattered, 1
	return o
}

// OneBlock returns o with stored events of one block.
func (o Options) OneBlock() Options {
	o.Chunk = 1
	return o
}

// Validate returns an error for the first field out of range. Zeros are defaults.
func (o Options) Validate() error {
	o = o.WithDefaults()
	for _, f := range []struct {
		name           string
		value, low, up int
	}{
		{"engines", o.Engines, 1, min(4096, oplog.MaxEngines)}, {"pool", o.Pool, 16, 1 << 20}, {"requests", o.Requests, 1, 1_000_000},
		{"sessions", o.Sessions, 1, 4096}, {"prefixes", o.Prefixes, 1, 1 << 16}, {"max prompt", o.MaxPrompt, 16, 1 << 16},
		{"align", o.Align, 1, 1024}, {"chunk", o.Chunk, 1, 1 << 16},
	} {
		if f.value < f.low || f.value > f.up {
			return fmt.Errorf("%s %d: want %d to %d", f.name, f.value, f.low, f.up)
		}
	}
	if !(o.Affinity >= 0 && o.Affinity <= 1) {
		return fmt.Errorf("affinity %g: want 0 to 1", o.Affinity)
	}
	if !(o.Forks >= 0 && o.Forks <= 1) {
		return fmt.Errorf("forks %g: want 0 to 1", o.Forks)
	}
	switch o.Order {
	case TailFirst, Shuffled, Scattered:
		return nil
	}
	return fmt.Errorf("order %q: want %s, %s or %s", o.Order, TailFirst, Shuffled, Scattered)
}
