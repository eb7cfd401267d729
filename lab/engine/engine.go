package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// httpCloseTime bounds the end of HTTP exchanges after the last request has
// been served or failed.
const httpCloseTime = 250 * time.Millisecond

// Endpoints are the addresses of a running engine.
type Endpoints struct {
	// HTTP is the address of the HTTP interface, host:port.
	HTTP string
	// Events and Replay are the ZMQ endpoints of the event publisher.
	Events, Replay string
}

// Engine is one simulated engine: one worker rank. It is used once.
type Engine struct {
	opts   Options
	log    *zap.Logger
	naming naming
	ctr    counters
	device device
}

// New checks the options and returns an engine that does not run yet. A nil log logs
// nothing.
func New(o Options, log *zap.Logger) (*Engine, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("sim-engine: %w", err)
	}
	log = cmp.Or(log, zap.NewNop())
	e := &Engine{opts: o.withDefaults(), log: log}
	e.naming = naming{namespace: o.Namespace.ID(), blockSize: int(o.Namespace.BlockSize)}
	_, _ = rand.Read(e.naming.secret[:]) // never fails: crypto/rand ends the process instead
	e.device = newDevice(e.opts.DeviceBlocks, int(o.Namespace.BlockBytes()))
	return e, nil
}

// Run serves until ctx ends. It then drains for at most two seconds, leaves the agent
// and closes its sockets. ready is called once, when requests are served. An error
// means that the engine could not serve.
func (e *Engine) Run(ctx context.Context, ready func(Endpoints)) error {
	pub, err := zmqpub.New(zmqpub.Options{
		Topic:       e.opts.EventsTopic,
		Events:      e.opts.Events,
		BufferSteps: e.opts.BufferSteps,
		Drop:        zmqpub.ChooseDrops(e.opts.DropFrames, e.opts.Seed, uint64(e.opts.Worker.ID)),
	})
	if err != nil {
		return fmt.Errorf("sim-engine: %w", err)
	}
	defer pub.Close()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", e.opts.HTTPAddr)
	if err != nil {
		return fmt.Errorf("sim-engine: http address %q: %w", e.opts.HTTPAddr, err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c, wait := e.start(ctx, pub)
	server := &http.Server{
		Handler:           (&api{opts: e.opts, naming: e.naming, core: c, pub: pub}).handler(),
		ReadHeaderTimeout: 10 * time.Second,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	ready(Endpoints{HTTP: listener.Addr().String(), Events: pub.Events, Replay: pub.Replay})
	select {
	case err = <-failed:
		stop()
		wait()
		return fmt.Errorf("sim-engine: http: %w", err)
	case <-ctx.Done():
	}
	wait()
	return closeServer(server, failed)
}

// start starts the scheduler, which runs until ctx ends, and the agent session, which runs until the
// scheduler has ended. It returns the scheduler, and wait, which returns when both have ended. pub
// publishes the scheduler's events.
func (e *Engine) start(ctx context.Context, pub *zmqpub.Publisher) (c *core, wait func()) {
	// The session outlives ctx: requests that drain still store.
	sessionCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	var agent remote = absent{}
	attend := func(*core) {}
	if e.opts.AgentSocket != "" {
		s := newSession(&e.opts, hello(&e.opts, kv.RandomID(), pub.Events, pub.Replay), e.device, e.log, &e.ctr)
		group.Go(func() { s.run(sessionCtx) })
		select {
		case <-s.tried: // so that the first request finds the agent, if there is one
		case <-ctx.Done():
		}
		agent, attend = s, s.attend
	}
	c = newCore(e.opts, e.device, agent, func(p []byte) { pub.Publish(p) }, giveUp, &e.ctr)
	attend(c)
	group.Go(func() {
		defer giveUp()
		c.run(ctx)
	})
	return c, group.Wait
}

// closeServer ends the HTTP server, whose Serve sends its result to failed. The scheduler has
// answered all requests by then.
func closeServer(s *http.Server, failed <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), httpCloseTime)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close() // a client that does not read its answer
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("sim-engine: http: %w", err)
	}
	return nil
}

// Options configure an Engine. The zero value of every field but Worker.ID and
// Namespace stands for the default in its comment.
type Options struct {
	// Worker is the worker that this engine is; its ID must not be 0.
	Worker kv.Worker
	// Namespace is the namespace of the blocks. It has block size and geometry.
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
	// LookupWait is how long a lookup may wait for the agent's disk. Default 50 ms;
	// negative does not wait.
	LookupWait time.Duration
	// Events is the endpoint of event frames, as tcp://HOST:PORT. Empty means any free port
	// of this machine.
	Events string
	// EventsTopic is the topic of event frames; vLLM's default is empty.
	EventsTopic string
	// BufferSteps is how many sent batches can be replayed. Default 10000.
	BufferSteps int
	// DropFrames is the number of event frames that are not sent live. They can still
	// be replayed.
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

// withDefaults returns o with every zero field replaced by its default.
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
	if gs := o.Namespace.KVGroups(); len(gs) > 0 && !simulated(gs, o.Namespace.BlockSize) {
		return fmt.Errorf("namespace groups: %+v, want a sliding window and full attention with blocks of %d tokens", gs, o.Namespace.BlockSize)
	}
	if b := uint64(o.DeviceBlocks) * o.Namespace.BlockBytes(); b > maxDeviceBytes {
		return fmt.Errorf("device blocks: %d blocks of %d bytes are %d bytes, more than %d",
			o.DeviceBlocks, o.Namespace.BlockBytes(), b, uint64(maxDeviceBytes))
	}
	return nil
}

// simulated reports whether the engine can simulate a model with these KV groups.
func simulated(gs kvgroup.Groups, blockSize uint32) bool {
	return len(gs) == 2 && gs[window].Kind == kvgroup.Sliding && gs[1].Kind == kvgroup.Full &&
		gs[0].BlockSize == blockSize && gs[1].BlockSize == blockSize && !gs[0].Eagle && !gs[1].Eagle
}

// stepTime returns how long a step over n tokens lasts.
func (o *Options) stepTime(n int) time.Duration {
	if n == 0 {
		return 0
	}
	compute := time.Duration(float64(n) / o.PrefillRate * float64(time.Second))
	return time.Duration(float64(max(o.StepBase, compute)) / o.SpeedUp)
}
