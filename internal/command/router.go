package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/resource"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/metrics"
	"github.com/blockyard-ai/blockyard/router/policyfile"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// Router is "blockyard router".
type Router struct {
	NATS       string `group:"Sources" name:"nats" placeholder:"URL" env:"BLOCKYARD_NATS" help:"NATS server that the agents publish on. Default: NATS_SERVER."`
	Cluster    string `group:"Sources" default:"default" env:"BLOCKYARD_CLUSTER" help:"Cluster whose agents to listen to."`
	HTTP       string `group:"Start and server" name:"http" default:"127.0.0.1:0" placeholder:"HOST:PORT" env:"BLOCKYARD_ROUTER_HTTP" help:"Address of the HTTP server; port 0 takes a free port."`
	Control    string `group:"Start and server" name:"control" placeholder:"PATH|HOST:PORT" env:"BLOCKYARD_ROUTER_CONTROL" help:"Unix socket or address for operators: dump, busy thresholds, registration. An address asks for a token only with --control-token-file. Default: router-PORT.sock, with the port of --http, in /run/blockyard or the user's own directory."`
	ConfigFile string `group:"Start and server" name:"config" type:"path" placeholder:"FILE" env:"BLOCKYARD_CONFIG" help:"YAML file with settings of agent and router. Flags and variables win over the file."`
	File       string `group:"Start and server" name:"router-config" placeholder:"FILE" env:"BLOCKYARD_ROUTER_CONFIG" help:"JSON file with settings, by the names in docs/router-config.md. Flags and variables win over the file."`

	LogLevel process.Level `group:"Start and server" live:"" name:"log-level" default:"info" placeholder:"LEVEL" env:"BLOCKYARD_LOG_LEVEL" help:"Least level of log lines: debug, info, warn or error."`

	NATSFile string `group:"Sources" name:"nats-file" type:"path" placeholder:"FILE" env:"BLOCKYARD_NATS_FILE" help:"File with the URL of the NATS server, such as the file that an agent with --embedded-nats writes."`

	ControlToken     string `group:"Start and server" name:"control-token-file" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_CONTROL_TOKEN_FILE" help:"File with the tokens of operators, a line NAME TOKEN for each. Without it --control asks for none."`
	HTTPRegistration bool   `group:"Start and server" name:"http-registration" env:"BLOCKYARD_ROUTER_HTTP_REGISTRATION" help:"Accept registrations of workers at --http. --control always accepts them."`

	natsFlags
	workerFlags
	dynamoWorkers
	serverFlags
	doorFlags
	tlsFlags
	serviceFlags

	Stream string `group:"Sources" name:"nats-stream" placeholder:"NAME" env:"BLOCKYARD_NATS_STREAM" help:"Name of the JetStream stream, with --router-durable-kv-events. Default: blockyard-CLUSTER."`

	// Settings are the flags of settingFlags.
	Settings kong.Plugins `embed:""`

	// settings are the values that Settings, variables and File give together.
	// DurableKVEvents and ResetStates are two of them that decide where messages come
	// from.
	settings        resolvedSettings
	flags           []*kong.Flag // those of no setting of package router/config
	file            fileValues
	DurableKVEvents bool `kong:"-"`
	ResetStates     bool `kong:"-"`
}

// NewRouter returns the command for kong to parse into. The zero Router lacks the flags of
// the router's settings.
func NewRouter() Router { return Router{Settings: settingFlags()} }

// BeforeResolve is called by kong before it sets the flags that are not on the command line. It
// reads --config.
func (c *Router) BeforeResolve(k *kong.Context) (err error) {
	c.file, err = readConfig(k, "router")
	return err
}

// AfterApply is called by kong when it has parsed the flags. It checks the environment for misspelt
// variables, and sets c.settings from flags, variables, and --router-config or --config. Kong
// reports its error as one of usage.
func (c *Router) AfterApply(k *kong.Context) error {
	if err := checkEnvironment(k.Model, os.Environ()); err != nil {
		return err
	}
	document, err := c.document()
	if err != nil {
		return err
	}
	if err := c.settings.resolve(k, os.Environ(), document); err != nil {
		return err
	}
	flags := plainFlags(k.Flags())
	if err := checkRanges(flags); err != nil {
		return err
	}
	c.flags, c.settings.plain = flags, c.plainNotes(k, flags)
	// Two settings that openSources needs.
	c.DurableKVEvents, c.ResetStates = c.settings.DurableKVEvents, c.settings.RouterResetStates
	return nil
}

// Run runs the router until ctx ends: it follows its sources of events, and serves gateways,
// operators and, when the front door is open, clients. All listeners are open before anything is
// served, so that a wrong address ends the router at once.
func (c *Router) Run(ctx context.Context, b build, from *settingsSource) (err error) {
	level := zap.NewAtomicLevelAt(c.LogLevel.Level)
	log := process.LoggerFrom("router", level)
	hangups := from.hangups.Take()
	c.settings.log(log)
	limitHeap(log)
	options := c.options(b.Version, log)
	if encrypted := c.tlsFlags.operators().Cert != ""; encrypted || c.Control != "" {
		if err := control.Check(c.Control, encrypted); err != nil {
			return fmt.Errorf("--control: %w", err)
		}
	}
	sources, err := c.openSources(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sources.Close()) }()
	if c.durable() {
		options.Snapshots = sources.nats
	}
	if sources.nats != nil {
		options.Replicas, options.Indexers = sources.nats, sources.nats
	}
	r, err := router.New(options, sources.Source)
	if err != nil {
		return err
	}
	servers, err := c.serverFlags.directory(r, sources, log)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, c.HTTP, c.tlsFlags.http(), c.connections(r.Metrics(), "blockyard_http_", false), log)
	if err != nil {
		return fmt.Errorf("--http %q: %w", c.HTTP, err)
	}
	operators, tokens, err := c.listenControl(listener, r.Metrics(), log)
	if err != nil {
		return errors.Join(err, closeAll(listener))
	}
	door, err := c.openDoor(ctx, r, servers, log)
	if err != nil {
		return errors.Join(err, closeAll(listener, operators))
	}
	served := api.New(r, api.Options{Registration: c.HTTPRegistration, Servers: servers, Tokens: tokens, Tokenize: door.tokenize(r), Version: b.Version, Log: log.Named("control")})
	return runAround(ctx, r, func(ctx context.Context, g *errgroup.Group) error {
		if err := c.openServices(ctx, g, r, sources, servers, log); err != nil {
			return errors.Join(err, closeAll(listener, operators))
		}
		g.Go(func() error { c.reloader(r, servers, from, level, log).Run(ctx, hangups); return nil })
		if door != nil {
			g.Go(func() error { return servers.Run(ctx) })
			g.Go(func() error { return door.serve(ctx) })
		}
		if sources.nats != nil {
			g.Go(func() error { return served.ServeNATS(ctx, sources.nats) })
		}
		serve(ctx, g, served, listener, operators, door)
		return nil
	})
}

// runAround runs r, and the servers that start adds to its group, until ctx ends or one of them fails.
// Bookings are shared with other routers until the last server has ended: requests that finish after the
// end of ctx stay booked there.
func runAround(ctx context.Context, r *router.Router, start func(ctx context.Context, servers *errgroup.Group) error) error {
	g, ctx := errgroup.WithContext(ctx)
	sharing, goodbye := context.WithCancel(context.WithoutCancel(ctx))
	defer goodbye()
	servers, ctx := errgroup.WithContext(ctx)
	servers.Go(func() error { return start(ctx, servers) })
	g.Go(func() error { return r.RunSharing(ctx, sharing) })
	g.Go(func() error {
		defer goodbye()
		return servers.Wait()
	})
	return g.Wait()
}

// limitHeap lets the Go heap be collected before a control group's limit ends the router.
func limitHeap(log *zap.Logger) {
	limits, err := resource.Read("/")
	if err != nil {
		log.Warn("the node's limits cannot be read: the heap is not checked against them", zap.Error(err))
	}
	if limit, ok := resource.LimitHeap(limits, 0); ok {
		log.Info("heap limit is set", zap.Int64("bytes", limit))
	}
}

// serve starts goroutines in g that serve callers and operators until ctx ends, and writes the line
// that says the router is ready, with all addresses. operators is nil without a listener for
// operators. door is nil without a front door (the listeners for clients of engines).
func serve(ctx context.Context, g *errgroup.Group, served *api.API, callers, operators net.Listener, door *openDoor) {
	ready := map[string]any{"ready": true, "http": callers.Addr().String(), "control": ""}
	g.Go(func() error { return served.Serve(ctx, callers) })
	if operators != nil {
		ready["control"] = operators.Addr().String()
		g.Go(func() error { return served.ServeControl(ctx, operators) })
	}
	if door != nil {
		door.addresses(ready)
	}
	g.Go(func() error { return process.WriteReady(ready) })
}

// closeAll closes the listeners that are not nil.
func closeAll(listeners ...net.Listener) (err error) {
	for _, l := range listeners {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// listenControl returns the listener for operators, at --control. The default is a socket named for
// the port of http, which only one process of a machine has. m gets the numbers of its connections. When the default socket cannot be made,
// as on a read-only file system, it logs that and returns no listener. tokens are those of
// --control-token-file.
func (c *Router) listenControl(http net.Listener, m *metrics.Metrics, log *zap.Logger) (l net.Listener, tokens *control.Tokens, err error) {
	if tokens, err = control.ReadTokens(c.ControlToken, log); err != nil {
		return nil, nil, fmt.Errorf("--control-token-file: %w", err)
	}
	address := c.Control
	if address == "" {
		_, port, err := net.SplitHostPort(http.Addr().String())
		if err != nil {
			return nil, nil, fmt.Errorf("--http: %w", err)
		}
		address = control.DefaultPath("router-" + port)
	}
	l, err = control.Listen(address)
	switch {
	case err == nil:
		if l, err = secure(l, c.tlsFlags.operators(), c.connections(m, "blockyard_control_", false), log); err != nil {
			return nil, nil, fmt.Errorf("--control-tls-cert: %w", err)
		}
		return l, tokens, nil
	case c.Control == "":
		log.Warn("no listener for operators; name another socket or address with --control", zap.Error(err))
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("--control: %w", err)
}

func (c *Router) options(version string, log *zap.Logger) router.Options {
	s := &c.settings.Config
	return router.Options{
		Config: s, SnapshotThreshold: snapshotThreshold(s), ResetStates: c.ResetStates,
		Version: version, Log: log,
	}
}

// snapshotThreshold returns the option of a setting that may be off.
func snapshotThreshold(s *config.Config) int {
	events, ok := s.SnapshotEvents()
	if !ok {
		return router.NoSnapshots
	}
	return int(events)
}

// check returns the error with which the router would not start, as far as the settings and the files
// that they name tell. It connects to nothing.
func (c *Router) check() error {
	options := c.options("", zap.NewNop())
	if err := options.Validate(); err != nil {
		return err
	}
	if path := c.settings.RouterPolicyConfig; path != nil {
		if _, err := policyfile.Load(*path); err != nil {
			return fmt.Errorf("router_policy_config: %w", err)
		}
	}
	if _, err := c.specs(); err != nil {
		return err
	}
	_, err := c.natsOptions(zap.NewNop())
	return err
}

// reloader returns a Reloader that applies live settings to r and to the worker servers of d.
func (c *Router) reloader(r *router.Router, d *workers.Directory, from *settingsSource, level zap.AtomicLevel, log *zap.Logger) *process.Reloader {
	live := make(map[string]bool)
	for _, f := range c.flags {
		live[f.Name] = process.IsLive(f)
	}
	for _, s := range config.Settings() {
		live[s.Name] = s.Live
	}
	// Without a server at the start there is no front door, and nobody follows the servers' events.
	live["worker"] = c.serverFlags.given()
	return &process.Reloader{
		Log: log, Now: c.values(), Live: func(name string) bool { return live[name] },
		Read: func() (process.Values, func() error, error) {
			root, err := from.parse()
			if err != nil {
				return nil, nil, err
			}
			next := &root.Router
			if err := next.check(); err != nil {
				return nil, nil, err
			}
			specs, err := next.specs()
			if err != nil {
				return nil, nil, err
			}
			return next.values(), func() error {
				if err := r.Reload(&next.settings.Config); err != nil {
					return err
				}
				level.SetLevel(next.LogLevel.Level)
				if !live["worker"] {
					return nil
				}
				return d.SetSpecs(specs) // the specs are valid
			}, nil
		},
	}
}

// values returns the values of the router's settings: those of flags, and of package router/config.
func (c *Router) values() process.Values {
	values := process.ValuesOf(c.flags)
	settings := config.Settings()
	for i := range settings {
		values[settings[i].Name] = settings[i].Text(&c.settings.Config)
	}
	return values
}
