package loggen

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

// Order is how an engine evicts.
type Order string

const (
	// TailFirst evicts the blocks of a prompt from its end, the longest unused
	// prompt first, so that what is held is always closed under prefixes.
	TailFirst Order = "tail-first"
	// Shuffled evicts the same blocks, but names those of one event in any order.
	Shuffled Order = "shuffled"
	// Scattered evicts the blocks of a prompt in any order, so that prompts have
	// holes, which later requests fill.
	Scattered Order = "scattered"
)

// Options shape a log. The zero value of a field is its default, given in
// brackets.
type Options struct {
	// Seed selects the log.
	Seed uint64
	// Engines is how many there are, 1..4,096 [32], and Pool how many blocks each
	// can hold, 16..1,048,576 [16,384].
	Engines, Pool int
	// Requests is how many prompts come, 1..1,000,000 [8,000].
	Requests int
	// Sessions is how many conversations go on at a time, 1..4,096 [256], each with
	// memory for the longest prompt from the start, and Prefixes how many beginnings
	// they share, 1..65,536 [64].
	Sessions, Prefixes int
	// MaxPrompt bounds prompts, in blocks, 16..65,536 [8,192].
	MaxPrompt int
	// Affinity is the probability that a request goes to the engine with the
	// deepest match, and not to any, 0..1.
	Affinity float64
	// Forks is the probability that a turn takes back a part of its conversation,
	// 0..1.
	Forks float64
	// Align is the multiple of blocks at which prompts part ways, 1..1,024 [32].
	Align int
	// Chunk is how many blocks a stored event has at most, 1..65,536 [128].
	Chunk int
	// Order is how engines evict [TailFirst].
	Order Order
}

// blockTokens is said in the header of a log; nothing depends on it.
const blockTokens = 16

// WithDefaults fills in what is zero.
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
	if o.Order == "" {
		o.Order = TailFirst
	}
	return o
}

// Unfriendly returns o without what helps an index of runs, but for long events: prompts
// part ways anywhere, and the removals of an event are shuffled.
func (o Options) Unfriendly() Options {
	o.Align, o.Forks, o.Order = 1, 0.5, Shuffled
	return o
}

// Worst returns o with nothing that helps an index of runs: besides, every stored event
// has one block, and blocks go from anywhere, so that prompts have holes.
func (o Options) Worst() Options {
	o.Align, o.Forks, o.Order, o.Chunk = 1, 0.5, Scattered, 1
	return o
}

// Validate reports the first field that is out of range; zeros are defaults.
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
