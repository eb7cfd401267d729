package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Options describe an engine.
type Options struct {
	ID    kv.Worker
	Steps *Steps
	// Speed divides the time of every step; 1 is the recorded engine.
	Speed float64
	// Noise is the standard deviation of the logarithm of a step's time. A step takes twice to four
	// times as long with probability Tail. Stalls is the mean number of stalls in a second; a stall
	// takes 50 to 400 ms.
	Noise, Tail, Stalls float64
	// WarmUp is the number of first steps that take longer, the first one four times as long.
	WarmUp int
	// BlockSize is in tokens. Blocks is the capacity of the device.
	BlockSize, Blocks int
	// Budget is the number of tokens that a step computes at most, MaxRunning the number of requests.
	Budget, MaxRunning int
	// HostBytes is what comes from host memory to the device in a second.
	HostBytes float64
	// NetworkBytes is what comes from or goes to other engines in a second.
	NetworkBytes float64
	Seed         uint64
	// Device is told what the device stores and removes.
	Device Sink
}

// Validate reports the first option out of range.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"speed", o.Speed, 0.001, 1000}, {"noise", o.Noise, 0, 2}, {"tail", o.Tail, 0, 1}, {"stalls", o.Stalls, 0, 10},
		{"warm up", float64(o.WarmUp), 0, 1e6}, {"block size", float64(o.BlockSize), 1, 1 << 20},
		{"blocks", float64(o.Blocks), 1, 1 << 24}, {"budget", float64(o.Budget), 1, 1 << 24},
		{"max running", float64(o.MaxRunning), 1, 1 << 20}, {"host bytes", o.HostBytes, 1, 1e15}, {"network bytes", o.NetworkBytes, 0, 1e15},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) {
			return fmt.Errorf("engine %s: %v is not in %v..%v", f.name, f.v, f.lo, f.hi)
		}
	}
	if o.Steps == nil {
		return fmt.Errorf("engine steps: are required")
	}
	return nil
}

// Request is a prompt and the number of tokens that it is answered with.
type Request struct {
	// Chain has the full blocks of prompt and answer.
	Chain
	// Prompt and Output are in tokens, both at least 1.
	Prompt, Output int
	// First is called at the first token, Block after each block of further tokens, Last at the end.
	// Lost is called instead when the engine dies or can never serve the request.
	First, Block, Last, Lost func()
	// Gap is called for each token after the first with the time since the token before.
	Gap func(time.Duration)

	// Held keeps the blocks in use after the end, until the request that has it as its Source has them.
	Held bool
	// Source is a held request of another engine for the same prompt. It has ended. The blocks of the prompt come
	// from there, over the network. Nil has none.
	Source *Request

	// Cached are the prompt tokens that were not computed, by the tier that they came from.
	Cached Served

	// tokens are those computed. target is their number at which the next token comes.
	tokens, target int
	generated      int
	// named is the number of blocks of Chain that the request references, and anonymous the
	// blocks behind them.
	named, anonymous int
	chunk            int
	lastToken        time.Duration
	// fromHost, fromDisk and fromNetwork are blocks that were loaded for the request.
	fromHost, fromDisk, fromNetwork int
	loaded                          bool
	engine                          *Engine
}

// Served are prompt tokens by where they came from.
type Served struct{ Device, Host, Disk, Network, Computed int }

// Engine is a worker. Make one with New.
type Engine struct {
	clock   *Clock
	options Options
	node    *Node
	device  *device
	rng     *rand.Rand

	running []*Request
	// waiting are requests whose blocks have been loaded, loading the number of the others.
	waiting []*Request
	loading int
	stepped []*Request // those of the step that runs
	stepAt  time.Duration
	busy    bool
	dead    bool
	steps   int
	// secondsPerToken is a moving mean of what a computed prompt token takes.
	secondsPerToken float64
	copyFree        time.Duration
	copyBytes       float64
	copyBusy        float64
	networkFree     time.Duration
	// SpeedFactor multiplies the speed; scenarios change it.
	SpeedFactor float64
	// Numbers of the run.
	Preempted, Dropped int
}

// New returns an idle engine on a node.
func New(clock *Clock, node *Node, o Options) (*Engine, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Engine{clock: clock, options: o, node: node, device: newDevice(o.Blocks, o.Device),
		rng: rand.New(rand.NewPCG(o.Seed, uint64(o.ID.ID))), SpeedFactor: 1,
		secondsPerToken: o.Steps.Milliseconds(float64(o.Budget), 0, 0) / float64(o.Budget) / 1e3 / o.Speed}, nil
}

// ID returns the worker.
func (e *Engine) ID() kv.Worker { return e.options.ID }

// Node returns the engine's node.
func (e *Engine) Node() *Node { return e.node }

// Running and Waiting return the numbers of requests that run and that wait.
func (e *Engine) Running() int { return len(e.running) }

// Waiting returns the number of requests that wait, those that wait for their blocks included.
func (e *Engine) Waiting() int { return len(e.waiting) + e.loading }

// Used returns the share of the device's blocks that requests use.
func (e *Engine) Used() float64 { return e.device.used() }

// Dead reports whether the engine has died.
func (e *Engine) Dead() bool { return e.dead }

// Work returns how many seconds the engine has to compute for the requests that it has, by their
// true lengths: the work left.
func (e *Engine) Work() float64 {
	tokens, decodes := 0.0, 0.0
	for _, list := range [][]*Request{e.running, e.waiting} {
		for _, r := range list {
			tokens += float64(max(0, r.target-r.tokens))
			decodes += float64(r.Output - r.generated)
		}
	}
	perDecode := e.options.Steps.Milliseconds(32, 0, 64e3) / 32e3 / e.options.Speed
	return tokens*e.secondsPerToken + decodes*perDecode
}

// Life is how far a request is.
type Life struct {
	// Tokens of Target are computed. Decodes is true after the first token, and Left is what the
	// request still gets.
	Tokens, Target, Left int
	Decodes              bool
}

// Each calls do for each request that runs or waits, but not for those that wait for their blocks.
func (e *Engine) Each(do func(Life)) {
	for _, list := range [][]*Request{e.running, e.waiting} {
		for _, r := range list {
			tokens := r.tokens
			if r.generated == 0 && tokens == 0 {
				tokens = e.options.BlockSize * e.device.blocks.prefix(r.Numbers[:(r.Prompt-1)/e.options.BlockSize])
			}
			do(Life{tokens, r.target, r.Output - r.generated, r.decodes()})
		}
	}
}

// LoadSeconds returns how long it takes to bring blocks from the tiers of the node to the device.
func (e *Engine) LoadSeconds(host, disk int) float64 {
	if host+disk == 0 {
		return 0
	}
	bytes := float64(host+disk) * e.node.options.BlockBytes
	return e.node.readSeconds(disk) + max(0, e.copyFree-e.clock.now).Seconds() + bytes/e.options.HostBytes
}

// Speed returns the present speed.
func (e *Engine) Speed() float64 { return e.options.Speed * e.SpeedFactor }

// Submit takes a request in. Its callbacks come later.
func (e *Engine) Submit(r *Request) {
	r.engine = e
	if need := e.blocksOf(r.Prompt + r.Output); e.dead || need > e.options.Blocks {
		e.Dropped++
		r.releaseSource()
		e.clock.After(0, r.Lost)
		return
	}
	r.target = r.Prompt
	if outside := e.options.Steps.Outside(e.rng); outside > 0 {
		e.loading++
		e.clock.After(seconds(outside), func() {
			if e.failIfDead(r) {
				r.releaseSource()
				return
			}
			e.loading--
			e.fetch(r)
		})
		return
	}
	e.fetch(r)
}

func (e *Engine) blocksOf(tokens int) int {
	return (tokens + e.options.BlockSize - 1) / e.options.BlockSize
}

// fetch brings the blocks that the node has to the device, unless computing them is sooner, and
// then has the request wait for its first step.
func (e *Engine) fetch(r *Request) {
	if r.Source != nil {
		e.receive(r)
		return
	}
	full := r.Numbers[:(r.Prompt-1)/e.options.BlockSize] // the last token is always computed
	onDevice := e.device.blocks.prefix(full)
	host, disk := e.node.hits(full[onDevice:])
	perBlock := e.node.options.BlockBytes / e.options.HostBytes
	if disk > 0 && e.node.readSeconds(disk)+float64(disk)*perBlock > float64(disk*e.options.BlockSize)*e.secondsPerToken {
		disk = 0
	}
	if host+disk == 0 {
		e.enqueue(r)
		return
	}
	e.loading++
	e.node.read(disk, func() {
		if e.failIfDead(r) {
			return
		}
		if disk > 0 {
			e.node.promote(r.first(onDevice + host + disk))
		}
		bytes := float64(host+disk) * e.node.options.BlockBytes
		took := bytes / e.options.HostBytes
		e.copyFree = max(e.copyFree, e.clock.now) + seconds(took)
		e.clock.At(e.copyFree, func() {
			if e.failIfDead(r) {
				return
			}
			e.copyBytes += bytes
			e.copyBusy += took
			e.node.Moved.HostToDevice += bytes
			if have := e.device.blocks.prefix(full); have < onDevice+host+disk {
				e.device.load(r.Chain, have, onDevice+host+disk)
			}
			r.fromHost, r.fromDisk = host, disk
			e.loading--
			e.enqueue(r)
		})
	})
	r.loaded = true
}

// enqueue has a request wait for its first step.
func (e *Engine) enqueue(r *Request) {
	e.waiting = append(e.waiting, r)
	e.kick()
}

// Report returns the load since the last report.
func (e *Engine) Report() kvevent.LoadReport {
	r := kvevent.LoadReport{PublisherID: uint64(e.options.ID.ID), Owner: kv.WorkerOwner(e.options.ID), Worker: kvevent.WorkerLoad{
		DeviceBlocksTotal: uint64(e.options.Blocks), DeviceBlocksUsed: uint64(float64(e.options.Blocks) * e.device.used()),
		Running: uint64(len(e.running)), Waiting: uint64(e.Waiting()),
		CopyBytes: uint64(e.copyBytes), CopyMicros: uint64(e.copyBusy * 1e6),
	}}
	e.copyBytes, e.copyBusy = 0, 0
	return r
}

// failIfDead tells a request in transit that the engine is dead, and reports whether it is.
func (e *Engine) failIfDead(r *Request) bool {
	if e.dead {
		r.Lost()
	}
	return e.dead
}

// Kill ends the engine. Its requests are lost, and so are its blocks.
func (e *Engine) Kill() {
	e.dead = true
	lost := slices.Concat(e.running, e.waiting)
	e.running, e.waiting, e.loading = nil, nil, 0
	for _, r := range lost {
		e.clock.After(0, r.Lost)
	}
}
