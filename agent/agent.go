package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/gpu"
	"github.com/blockyard-ai/blockyard/publisher"
)

// connectTimeout bounds how long New waits for NATS.
const connectTimeout = 10 * time.Second

// Agent is one node's agent. New starts it, Run serves until its context ends.
type Agent struct {
	cfg Config
	log *zap.Logger

	manager  *blockmgr.Manager
	nats     *publisher.NATS // nil: nothing is published
	hub      *eventHub
	server   *sessionServer
	admin    *adminServer
	adminTCP net.Listener

	ready     atomic.Bool
	closeOnce sync.Once
	closeErr  error
}

// New takes the agent's directories, sockets and NATS connection into use. The
// error names the field and the value that cannot be used. Run or Close must be
// called.
func New(cfg Config, log *zap.Logger) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	a := &Agent{cfg: cfg.withDefaults(), log: log}
	if err := a.start(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// start makes the parts in the order of the package comment. What was made when
// a step fails is for Close to undo.
func (a *Agent) start() error {
	a.logGPUs()
	if a.cfg.NATSURL != "" {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		n, err := publisher.ConnectNATS(ctx, publisher.NATSOptions{
			URL: a.cfg.NATSURL, Cluster: a.cfg.Cluster, Name: "blockyard agent " + a.cfg.Node, Log: a.log.Named("publisher"),
		})
		if err != nil {
			return err
		}
		a.nats = n
	} else {
		a.log.Info("no NATS URL is set: events are not published")
	}
	a.hub = newEventHub(a.cfg.Node, a.nats, a.log.Named("events"))
	var err error
	a.manager, err = blockmgr.Open(blockmgr.Config{
		HostDir: a.cfg.HostDir, HostBytes: a.cfg.HostBytes, DiskDir: a.cfg.DiskDir, DiskBytes: a.cfg.DiskBytes,
		ExtentBytes: a.cfg.ExtentBytes, MaxPinsPerSession: a.cfg.MaxPins, Sink: a.hub, Log: a.log.Named("blockmgr"),
	})
	if err != nil {
		return err
	}
	a.log.Info("tiers",
		zap.String("host_dir", a.cfg.HostDir), zap.Uint64("host_bytes", a.cfg.HostBytes),
		zap.String("disk_dir", a.cfg.DiskDir), zap.Uint64("disk_bytes", a.cfg.DiskBytes))
	l, err := listen(a.cfg.Socket)
	if err != nil {
		return err
	}
	a.server = newSessionServer(a.cfg, a.manager, a.hub, l, a.log.Named("sessions"))
	if a.adminTCP, err = net.Listen("tcp", a.cfg.Admin); err != nil {
		return fmt.Errorf("admin address %q: %w", a.cfg.Admin, err)
	}
	a.admin = newAdminServer(a)
	return nil
}

func (a *Agent) logGPUs() {
	devices, err := gpu.List()
	if err != nil {
		a.log.Info("GPUs are not listed", zap.String("reason", err.Error()))
	}
	for _, d := range devices {
		a.log.Info("GPU", zap.Int("index", d.Index), zap.String("name", d.Name), zap.String("uuid", d.UUID), zap.Uint64("memory_bytes", d.MemoryBytes))
	}
}

// AdminAddr is the address of the HTTP server, with its real port.
func (a *Agent) AdminAddr() string { return a.adminTCP.Addr().String() }

// SocketPath is the path of the socket that engines connect to.
func (a *Agent) SocketPath() string { return a.cfg.Socket }

// Run serves engines until ctx ends, then stops in the order of the package
// comment. It returns nil after an orderly stop. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	flushCtx, stopFlusher := context.WithCancel(context.Background())
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		a.hub.run(flushCtx)
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.server.run(gctx) })
	g.Go(func() error { return a.admin.serve(a.adminTCP) })
	g.Go(func() error {
		<-gctx.Done() // asked to stop, or a part has failed
		a.ready.Store(false)
		a.server.close()
		stopFlusher()
		<-flushed
		return a.Close()
	})
	a.ready.Store(true)
	a.log.Info("serving", zap.String("node", a.cfg.Node), zap.String("socket", a.cfg.Socket), zap.String("admin", a.AdminAddr()))
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
	if a.nats != nil {
		errs = append(errs, a.nats.Close())
	}
	if a.admin != nil {
		errs = append(errs, a.admin.close())
	}
	if a.adminTCP != nil {
		if err := a.adminTCP.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
