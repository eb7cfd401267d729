package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/gpu"
)

// Agent is one node's agent. New starts it, Run serves until its context ends.
type Agent struct {
	cfg Config
	log *zap.Logger

	room     *tierRoom
	manager  *blockmgr.Manager
	out      *outputs
	hub      *eventHub
	evicted  *evictionTap
	server   *sessionServer
	admin    *adminServer
	adminTCP net.Listener
	control  *adminServer // what operators may do
	controlL net.Listener
	kvbm     *adminServer // KVBM's metrics; nil when they are not served
	kvbmTCP  net.Listener

	ready     atomic.Bool
	closeOnce sync.Once
	closeErr  error
}

// New takes the agent's directories, sockets and NATS connection into use. The
// error names the field and the value that cannot be used; nothing is touched
// before every field has been checked. When ctx ends first New stops between two
// steps, undoes them and returns ctx's error. After New ctx is not used any more.
// Run or Close must be called.
func New(ctx context.Context, cfg Config, log *zap.Logger) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	a := &Agent{cfg: cfg.withDefaults(), log: log}
	if err := a.start(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// start makes the parts in the order of the package comment. What was made when
// a step fails is for Close to undo.
func (a *Agent) start(ctx context.Context) error {
	logGPUs(a.log, gpu.List)
	for _, step := range []func(context.Context) error{a.connect, a.openTiers, a.listen} {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("start: %w", err)
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// connect opens what events are told to.
func (a *Agent) connect(ctx context.Context) (err error) {
	a.out, err = openOutputs(ctx, &a.cfg, a.log.Named("publisher"))
	a.hub = newEventHub(a.cfg.Node, a.out, a.log.Named("events"))
	return err
}

// openTiers opens the block manager.
func (a *Agent) openTiers(context.Context) error {
	if !a.cfg.hostOn() && !a.cfg.diskOn() {
		a.log.Warn("NO TIER IS ON: nothing is stored and nothing is found; set the size of a host tier, of a disk tier or of both")
	}
	a.room = newTierRoom(&a.cfg, a.log)
	if err := a.room.checkStart(); err != nil {
		return err
	}
	c := a.cfg.tiers()
	a.evicted = newEvictionTap(a.hub)
	c.Sink, c.Log = a.evicted, a.log.Named("blockmgr")
	var err error
	if a.cfg.Tuning.DiskFilter {
		if c.Filter, err = policy.NewFrequencyFilter(a.cfg.Tuning.Frequency); err != nil {
			return err
		}
	}
	if a.manager, err = blockmgr.Open(c); err != nil {
		return err
	}
	a.log.Info("tiers",
		zap.String("host_dir", a.cfg.HostDir), zap.Uint64("host_bytes", a.cfg.HostBytes), zap.Uint64("host_blocks", a.cfg.Tuning.HostBlocks),
		zap.String("disk_dir", a.cfg.DiskDir), zap.Uint64("disk_bytes", a.cfg.DiskBytes), zap.Uint64("disk_blocks", a.cfg.Tuning.DiskBlocks))
	return a.logTakeover()
}

// logTakeover says what of an earlier agent's host tier is left, after what does
// not fit any more is gone.
func (a *Agent) logTakeover() error {
	extents, sessions := a.manager.HostExtents(), len(a.manager.Former())
	if !a.manager.Warm() || extents+sessions == 0 {
		return nil
	}
	held, err := storage.HeldBytes(a.cfg.HostDir)
	if err != nil {
		return fmt.Errorf("host directory: %w", err)
	}
	a.log.Info("the host tier of an earlier agent is taken over",
		zap.Uint64("host_bytes", held), zap.Int("extents", extents), zap.Int("sessions", sessions))
	return nil
}

// listen makes the sockets. Connections wait in them for Run.
func (a *Agent) listen(ctx context.Context) error {
	l, err := listen(a.cfg.Socket, a.cfg.allowsOthers(), a.log)
	if err != nil {
		return err
	}
	if a.server, err = newSessionServer(a.cfg, a.manager, a.hub, a.room, a.evicted, l, a.log.Named("sessions")); err != nil {
		return err
	}
	if server := a.out.server; server != nil {
		if err := writeEmbeddedURL(&a.cfg, server); err != nil {
			return err
		}
		a.log.Info("a NATS server runs in this agent", zap.String("url_file", a.cfg.embeddedURLFile()))
	}
	if a.controlL, err = control.Listen(a.cfg.Control); err != nil {
		return err
	}
	a.controlL = limitListener(a.controlL, httpConnections(a.server.files.limit))
	a.control = newControlServer(a)
	if a.adminTCP, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.Admin); err != nil {
		return fmt.Errorf("admin address %q: %w", a.cfg.Admin, err)
	}
	a.adminTCP = limitListener(a.adminTCP, httpConnections(a.server.files.limit))
	a.admin = newAdminServer(a)
	if a.cfg.KVBM.Metrics == "" {
		return nil
	}
	if a.kvbmTCP, err = new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.KVBM.Metrics); err != nil {
		return fmt.Errorf("KVBM metrics address %q: %w", a.cfg.KVBM.Metrics, err)
	}
	a.kvbmTCP = limitListener(a.kvbmTCP, httpConnections(a.server.files.limit))
	a.kvbm = newKVBMServer(a)
	a.log.Info("serving KVBM's metrics", zap.String("address", a.kvbmTCP.Addr().String()))
	return nil
}

// logGPUs tells people which GPUs the node has; the agent needs none.
func logGPUs(log *zap.Logger, list func() ([]gpu.Device, error)) {
	devices, err := list()
	for _, d := range devices {
		log.Info("GPU", zap.Int("index", d.Index), zap.String("name", d.Name), zap.String("uuid", d.UUID), zap.Uint64("memory_bytes", d.MemoryBytes))
	}
	switch {
	case err != nil && len(devices) > 0:
		log.Warn("not every GPU is listed", zap.String("reason", err.Error()))
	case err != nil:
		log.Info("GPUs are not listed", zap.String("reason", err.Error()))
	case len(devices) == 0:
		log.Info("no GPU visible")
	}
}

// AdminAddr is the address of the HTTP server, with its real port.
func (a *Agent) AdminAddr() string { return a.adminTCP.Addr().String() }

// ControlAddr is where operators reach the agent: the path of a Unix socket, or
// HOST:PORT with the real port.
func (a *Agent) ControlAddr() string { return a.controlL.Addr().String() }

// SocketPath is the path of the socket that engines connect to.
func (a *Agent) SocketPath() string { return a.cfg.Socket }

// Run serves engines until ctx ends, then stops in the order of the package
// comment. It returns nil after an orderly stop. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	backCtx, stopBack := context.WithCancel(context.Background())
	var back sync.WaitGroup // what runs until the sessions have ended
	back.Go(func() { a.hub.run(backCtx) })
	back.Go(func() { a.room.run(backCtx) })
	back.Go(func() { reportLoads(backCtx, a.hub.loadSources, a.out.publishLoad) })
	if a.cfg.KVBM.LogHitRates {
		back.Go(func() { a.server.cache.logRates(backCtx, a.cfg.KVBM.LogInterval, a.log) })
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.server.run(gctx) })
	g.Go(func() error { return a.admin.serve(a.adminTCP) })
	g.Go(func() error { return a.control.serve(a.controlL) })
	if a.kvbm != nil {
		g.Go(func() error { return a.kvbm.serve(a.kvbmTCP) })
	}
	g.Go(func() error {
		<-gctx.Done() // asked to stop, or a part has failed
		a.ready.Store(false)
		a.log.Info("stopping", zap.NamedError("cause", context.Cause(gctx)))
		if a.cfg.DrainTimeout > 0 {
			a.server.drain(a.cfg.DrainTimeout)
		}
		a.server.close()
		stopBack()
		back.Wait()
		err := a.Close()
		a.log.Info("stopped", zap.Error(err))
		return err
	})
	a.ready.Store(true)
	a.log.Info("serving", zap.String("node", a.cfg.Node), zap.String("socket", a.cfg.Socket), zap.String("admin", a.AdminAddr()), zap.String("control", a.ControlAddr()))
	return g.Wait()
}

// Close ends an agent that Run does not serve: it stops whatever New started.
// Further calls do nothing.
func (a *Agent) Close() error {
	a.closeOnce.Do(func() { a.closeErr = a.stop() })
	return a.closeErr
}

// stop undoes start, as far as that went.
func (a *Agent) stop() error {
	var errs []error
	if a.server != nil {
		a.server.close()
	}
	if a.hub != nil {
		a.hub.closePools()
	}
	if a.manager != nil {
		errs = append(errs, a.manager.Close())
	}
	if a.out != nil {
		errs = append(errs, a.out.close())
	}
	for _, s := range []*adminServer{a.admin, a.control, a.kvbm} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	for _, l := range []net.Listener{a.adminTCP, a.controlL, a.kvbmTCP} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
