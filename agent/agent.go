package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/agent/admin"
	"github.com/blockyard-ai/blockyard/agent/descriptors"
	"github.com/blockyard-ai/blockyard/agent/engine"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/limits"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/agent/socket"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/gpu"
	"github.com/blockyard-ai/blockyard/internal/resource"
)

// Agent is one node's agent. New starts it, Run serves until its context ends.
type Agent struct {
	cfg Config
	log *zap.Logger

	hub    *events.Hub
	pools  *pools.Set
	engine *engine.Server
	// filter chooses the blocks for the disk; nil without it.
	filter *policy.FrequencyFilter
	// budget bounds what is written to disk; nil for no bound.
	budget *policy.WriteBudget
	public, control,
	kvbm *admin.Server // kvbm is nil when KVBM's metrics are not served
	history *console.History

	// drainTimeout is Config.DrainTimeout, or DrainTimeout of the last Reload.
	drainTimeout atomic.Int64

	ready     atomic.Bool
	closeOnce sync.Once
	closeErr  error
}

// New opens the agent's directories, sockets and connections. It checks every field before it
// touches anything; the error names the field and the value. When ctx ends first, New undoes
// its steps and returns ctx's error. After New ctx is not used. Run or Close must be called.
func New(ctx context.Context, cfg Config, log *zap.Logger) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log = cmp.Or(log, zap.NewNop())
	a := &Agent{cfg: cfg.withDefaults(), log: log}
	a.history = a.newHistory()
	a.drainTimeout.Store(int64(cfg.DrainTimeout))
	if err := a.start(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// start makes the parts in the order of the package comment. Close undoes the steps before one
// that fails.
func (a *Agent) start(ctx context.Context) error {
	devices := logGPUs(a.log, gpu.List)
	if a.cfg.NearGPUs {
		present, err := resource.MemoryNodes("/")
		a.cfg.Tiers.HostNodes = hostNodes(a.log, devices, present, err)
	}
	for _, step := range []func(context.Context) error{a.openEvents, a.openPools, a.listenEngines, a.listenHTTP} {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("start: %w", err)
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// openEvents connects the outputs of events. An embedded NATS server without a limit of
// connections gets its share of the file descriptors.
func (a *Agent) openEvents(ctx context.Context) error {
	cfg := a.cfg.events()
	if e := cfg.Embedded; e != nil && e.MaxConnections == 0 {
		limit, err := descriptors.Limit()
		if err != nil {
			return err
		}
		bounded := *e
		bounded.MaxConnections = descriptors.NATSConnections(limit)
		cfg.Embedded = &bounded
	}
	var err error
	a.hub, err = events.Open(ctx, cfg, a.log)
	return err
}

// openPools opens the block manager.
func (a *Agent) openPools(ctx context.Context) error {
	tiers, frequency := a.cfg.tiers(), a.cfg.Frequency
	var err error
	if tiers.DiskKey, err = a.cfg.DiskKey.Load(ctx); err != nil {
		return err
	}
	if a.cfg.DiskWriteBudget > 0 {
		if a.budget, err = policy.NewWriteBudget(a.cfg.DiskWriteBudget, time.Now()); err != nil {
			return err
		}
		tiers.Budget, frequency.Budget = a.budget, a.budget
	}
	if !a.cfg.DiskFilter {
		frequency.Min = 1 // the budget alone refuses blocks
	}
	if a.cfg.DiskFilter || a.budget != nil {
		if a.filter, err = policy.NewFrequencyFilter(frequency); err != nil {
			return err
		}
		tiers.Filter = a.filter
	}
	if a.pools, err = pools.Open(a.cfg.Node, tiers, a.hub, a.log); err != nil {
		return err
	}
	return a.limit(a.cfg.Limits)
}

// limit sets how much of the tiers models and tenants may have.
func (a *Agent) limit(l limits.Limits) error {
	if _, err := a.pools.Manager().SetTenants(l.Tenants); err != nil {
		return err
	}
	_, err := a.pools.Manager().SetModelLimits(l.Models)
	return err
}

// checkLimits returns the error that limit would return. It changes nothing.
func (a *Agent) checkLimits(l limits.Limits) error {
	return cmp.Or(a.pools.Manager().CheckTenants(l.Tenants), tenant.CheckLimits(l.Models))
}

// listenEngines makes the engines' socket and server. It divides the file descriptors of the
// process among the agent's parts. Connections wait in the socket for Run.
func (a *Agent) listenEngines(context.Context) error {
	l, err := socket.Listen(a.cfg.Socket, a.cfg.allowsOthers(), a.log)
	if err != nil {
		return err
	}
	needs := descriptors.Needs{Listeners: 2, NATS: a.cfg.Events.Embedded != nil, Rank: events.MaxRankDescriptors}
	if a.cfg.KVBM.Metrics != "" {
		needs.Listeners++
	}
	needs.Extents = a.cfg.Tiers.Extents()
	files, err := descriptors.Divide(needs)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	log := a.log.Named("sessions")
	files.Log(log)
	a.engine = engine.New(a.cfg.engine(), a.pools, a.hub, files, l, log)
	return a.hub.WriteURL() // the file is named after the socket, which is the agent's now
}

// listenHTTP makes the HTTP listeners. Connections wait in them for Run.
func (a *Agent) listenHTTP(ctx context.Context) error {
	limit, err := descriptors.Limit()
	if err != nil {
		return err
	}
	connections := descriptors.HTTPConnections(limit)
	l, err := control.Listen(a.cfg.Control)
	if err != nil {
		return err
	}
	tokens, err := control.ReadTokens(a.cfg.ControlTokens, a.log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	public := admin.Public{
		Pools: a.pools, Ready: a.ready.Load, Stats: func() any { return a.Stats() }, History: a.history, Version: a.cfg.Version,
		Metrics: metricsHandler(a.Stats, a.cfg.Version), Events: a.hub.RegisterHTTP,
	}
	operators := control.Operators{Tokens: tokens, Log: a.log.Named("control")}
	// The limit is below TLS, so that connections in a handshake count.
	encrypted, err := a.cfg.ControlTLS.Listen(descriptors.LimitListener(l, connections), operators.Log)
	if err != nil {
		return errors.Join(fmt.Errorf("control address: %w", err), l.Close())
	}
	a.control = admin.NewServer(encrypted, public.Control(operators), operators.Log)
	listen := func(name, address string) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("%s address %q: %w", name, address, err)
		}
		return descriptors.LimitListener(l, connections), nil
	}
	if l, err = listen("admin", a.cfg.Admin); err != nil {
		return err
	}
	a.public = admin.NewServer(l, public.Handler(), a.log.Named("admin"))
	if a.cfg.KVBM.Metrics == "" {
		return nil
	}
	if l, err = listen("KVBM metrics", a.cfg.KVBM.Metrics); err != nil {
		return err
	}
	tiers := a.cfg.tiers()
	a.kvbm = admin.NewServer(l, kvbmHandler(a.Stats, tiers.BypassesHost()), a.log.Named("kvbm"))
	a.log.Info("serving KVBM's metrics", zap.String("address", a.kvbm.Addr()))
	return nil
}

// AdminAddr returns the address of the HTTP server, with its real port.
func (a *Agent) AdminAddr() string { return a.public.Addr() }

// ControlAddr returns where operators reach the agent: the path of a Unix socket, or HOST:PORT
// with the real port.
func (a *Agent) ControlAddr() string { return a.control.Addr() }

// SocketPath returns the path of the engines' socket.
func (a *Agent) SocketPath() string { return a.cfg.Socket }

// Run serves engines until ctx ends, then stops in the order of the package
// comment. It returns nil after an orderly stop. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	backCtx, stopBack := context.WithCancel(context.Background())
	var back sync.WaitGroup // runs until the sessions have ended
	back.Go(func() { a.hub.Run(backCtx) })
	back.Go(func() { a.pools.Run(backCtx) })
	back.Go(func() { a.history.Run(backCtx) })
	if a.cfg.KVBM.LogHitRates {
		back.Go(func() { a.engine.LogHitRates(backCtx, a.cfg.KVBM.LogInterval, a.log) })
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.engine.Run(gctx) })
	for _, s := range a.servers() {
		g.Go(s.Serve)
	}
	g.Go(func() error {
		<-gctx.Done() // a part has failed, or ctx has ended
		a.ready.Store(false)
		a.log.Info("stopping", zap.NamedError("cause", context.Cause(gctx)))
		if d := time.Duration(a.drainTimeout.Load()); d > 0 {
			a.engine.Drain(d)
		}
		a.engine.Close()
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

// Reload takes over the fields of cfg that can change while the agent runs: Tiers.Weights, Limits,
// AllowUIDs and DrainTimeout. Other fields do not change. Open connections stay. The error names the field and the
// value; nothing has changed then.
func (a *Agent) Reload(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	if err := a.checkLimits(cfg.Limits); err != nil {
		return err
	}
	if err := a.engine.Allow(cfg.AllowUIDs, cfg.allowsOthers()); err != nil {
		return err
	}
	if err := a.limit(cfg.Limits); err != nil { // valid, as checkLimits has found
		return err
	}
	a.drainTimeout.Store(int64(cfg.DrainTimeout))
	return a.pools.Manager().SetWeights(cfg.Tiers.Weights) // valid, as cfg is
}

// servers returns the HTTP servers that start has made.
func (a *Agent) servers() (all []*admin.Server) {
	for _, s := range []*admin.Server{a.public, a.control, a.kvbm} {
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// Close stops an agent that Run does not serve. Further calls do nothing.
func (a *Agent) Close() error {
	a.closeOnce.Do(func() { a.closeErr = a.stop() })
	return a.closeErr
}

// stop closes the parts that start has made.
func (a *Agent) stop() error {
	var errs []error
	if a.engine != nil {
		a.engine.Close()
	}
	if a.pools != nil {
		errs = append(errs, a.pools.Close())
	}
	if a.hub != nil {
		errs = append(errs, a.hub.Close())
	}
	for _, s := range a.servers() {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
