package engine

import (
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
)

// httpCloseTime bounds the end of HTTP exchanges after the last request has
// been served or failed.
const httpCloseTime = 250 * time.Millisecond

// Endpoints is where a running engine can be reached.
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

// New checks the options and makes an engine that does nothing yet. A nil log
// logs nothing.
func New(o Options, log *zap.Logger) (*Engine, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("sim-engine: %w", err)
	}
	if log == nil {
		log = zap.NewNop()
	}
	e := &Engine{opts: o.withDefaults(), log: log}
	e.naming = naming{namespace: o.Namespace.ID(), blockSize: int(o.Namespace.BlockSize)}
	_, _ = rand.Read(e.naming.secret[:]) // never fails: crypto/rand ends the process instead
	e.device = newDevice(e.opts.DeviceBlocks, int(o.Namespace.BlockBytes()))
	return e, nil
}

// Run serves until ctx ends; then it drains for at most two seconds, takes
// leave of the agent and closes its sockets. ready is called once, when requests
// are served. An error means that the engine could not serve.
func (e *Engine) Run(ctx context.Context, ready func(Endpoints)) error {
	pub, err := newPublisher(publisherOptions{
		topic:       e.opts.EventsTopic,
		bufferSteps: e.opts.BufferSteps,
		drop:        chooseDrops(e.opts.DropFrames, e.opts.Seed, uint64(e.opts.Worker.ID)),
		ctr:         &e.ctr,
	})
	if err != nil {
		return fmt.Errorf("sim-engine: %w", err)
	}
	defer pub.close()
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
	ready(Endpoints{HTTP: listener.Addr().String(), Events: pub.events, Replay: pub.again})
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

// start runs the scheduler until ctx ends, and the agent session until the
// scheduler needs it no more. wait returns when both have ended.
func (e *Engine) start(ctx context.Context, pub *publisher) (c *core, wait func()) {
	// The session outlives ctx: what is being drained still stores.
	sessionCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	var agent remote = absent{}
	attend := func(*core) {}
	if e.opts.AgentSocket != "" {
		s := newSession(&e.opts, hello(&e.opts, kv.RandomID(), pub.events, pub.again), e.device, e.log, &e.ctr)
		group.Go(func() { s.run(sessionCtx) })
		select {
		case <-s.tried: // so that the first request finds the agent, if there is one
		case <-ctx.Done():
		}
		agent, attend = s, s.attend
	}
	c = newCore(e.opts, e.device, agent, func(p []byte) { pub.publish(p) }, giveUp, &e.ctr)
	attend(c)
	group.Go(func() {
		defer giveUp()
		c.run(ctx)
	})
	return c, group.Wait
}

// closeServer ends the server, whose requests have all been answered by now.
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
