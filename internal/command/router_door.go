package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/connlimit"
	"github.com/blockyard-ai/blockyard/internal/drain"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/resource"
	"github.com/blockyard-ai/blockyard/internal/servertls"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/api/indexer"
	"github.com/blockyard-ai/blockyard/router/api/selection"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/extproc"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/spans"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
	"github.com/blockyard-ai/blockyard/router/frontend/tenant"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/metrics"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// doorFlags are the flags of "blockyard router" for its front door, where clients of the
// OpenAI API come in.
type doorFlags struct {
	APIKeys     string        `group:"Front door" name:"api-keys" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_API_KEYS" help:"File with the API keys of clients, one JSON object a line. Default: no keys are asked for."`
	Pass        []string      `group:"Front door" name:"pass" placeholder:"PATH" env:"BLOCKYARD_ROUTER_PASS" help:"Path that is forwarded besides the OpenAI routes, such as /v1/rerank. Repeat the flag for each path."`
	Origins     []string      `group:"Front door" name:"trusted-origin" placeholder:"URL" env:"BLOCKYARD_ROUTER_TRUSTED_ORIGIN" help:"Site whose pages may send requests from browsers, such as https://chat.example. Repeat the flag for each site."`
	RequestTime time.Duration `group:"Front door" name:"request-timeout" range:"0s..8760h" default:"0s" env:"BLOCKYARD_ROUTER_REQUEST_TIMEOUT" help:"Longest time of a request, from its arrival to the end of its answer; 0 is no limit."`
	MaxRequests int           `group:"Front door" name:"max-requests" range:"1..1048576" default:"${max_requests}" env:"BLOCKYARD_ROUTER_MAX_REQUESTS" help:"Requests in progress, at most; more are refused with status 503."`
	MaxRunning  int           `group:"Front door" name:"max-running" range:"0..1048576" default:"0" env:"BLOCKYARD_ROUTER_MAX_RUNNING" help:"Requests of a model at workers, at most; more wait with fair shares of tenants. 0 is no limit: the router's queue decides."`
	MaxWaiting  int           `group:"Front door" name:"max-waiting" range:"1..1048576" default:"${max_waiting}" env:"BLOCKYARD_ROUTER_MAX_WAITING" help:"Requests of a model that wait because of --max-running, at most; a quarter of them of one tenant."`
	MaxWait     time.Duration `group:"Front door" name:"max-wait" range:"1ms..24h" default:"${max_wait}" env:"BLOCKYARD_ROUTER_MAX_WAIT" help:"Longest time that a request waits because of --max-running."`
	MaxClient   int           `group:"Front door" name:"max-client-requests" range:"0..1048576" default:"0" env:"BLOCKYARD_ROUTER_MAX_CLIENT_REQUESTS" help:"Requests in progress of one client address, at most; more are refused with status 429. 0 is no limit."`
	MaxConns    int           `group:"Front door" name:"max-connections" range:"0..1048576" default:"16384" env:"BLOCKYARD_ROUTER_MAX_CONNECTIONS" help:"Connections of each listener for clients, gateways, services and operators, at most. A new one closes the one that has been idle longest; at --ext-proc it is refused. 0 is no limit."`
	ClientConns int           `group:"Front door" name:"max-client-connections" range:"0..1048576" default:"0" env:"BLOCKYARD_ROUTER_MAX_CLIENT_CONNECTIONS" help:"Connections of one address at each of these listeners, at most. 0 is no limit."`
	RenderURL   string        `group:"Front door" name:"render-url" placeholder:"URL" env:"BLOCKYARD_ROUTER_RENDER_URL" help:"Render server that turns prompts into tokens: vllm launch render MODEL. Without it the workers are asked."`
	ExtProc     string        `group:"Front door" name:"ext-proc" placeholder:"HOST:PORT" env:"BLOCKYARD_ROUTER_EXT_PROC" help:"Listen for Envoy's external processing (gRPC): Envoy and gateways of the Gateway API forward requests to the workers that this router chooses."`
	Fallbacks   bool          `group:"Front door" name:"ext-proc-fallbacks" default:"true" negatable:"" env:"BLOCKYARD_ROUTER_EXT_PROC_FALLBACKS" help:"Name other workers after the chosen one, for the gateway's retries. Envoy's ORIGINAL_DST clusters take only one."`
	AccessLog   bool          `group:"Front door" name:"access-log" env:"BLOCKYARD_ROUTER_ACCESS_LOG" help:"Log one line for each request."`
}

// routerDefaults returns the defaults that packages of the router declare, for kong to put into the
// tags of doorFlags and serviceFlags.
func routerDefaults() kong.Vars {
	return kong.Vars{
		"max_requests":      strconv.Itoa(frontend.DefaultMaxRequests),
		"max_waiting":       strconv.Itoa(admission.DefaultWaiting),
		"max_wait":          fmt.Sprintf("%dm", admission.DefaultWait/time.Minute),
		"selection_ttl":     fmt.Sprint(selection.DefaultTTL.Seconds()),
		"selection_entries": strconv.Itoa(selection.DefaultEntries),
		"selection_bytes":   strconv.Itoa(selection.DefaultBytes),
	}
}

// tlsFlags are the certificates of the listeners for clients, for gateways' ext_proc, of --http, of --control and of
// the services.
type tlsFlags struct {
	Cert         string `group:"Front door" name:"tls-cert" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_TLS_CERT" help:"PEM certificate of the clients' listener. Default: no TLS."`
	Key          string `group:"Front door" name:"tls-key" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_TLS_KEY" help:"PEM key of --tls-cert."`
	ClientCA     string `group:"Front door" name:"tls-client-ca" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_TLS_CLIENT_CA" help:"PEM certificates of the authorities of clients. With it, clients need a certificate."`
	ExtCert      string `group:"Front door" name:"ext-proc-tls-cert" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_EXT_PROC_TLS_CERT" help:"PEM certificate of --ext-proc. Default: no TLS."`
	ExtKey       string `group:"Front door" name:"ext-proc-tls-key" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_EXT_PROC_TLS_KEY" help:"PEM key of --ext-proc-tls-cert."`
	ExtClientCA  string `group:"Front door" name:"ext-proc-tls-client-ca" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_EXT_PROC_TLS_CLIENT_CA" help:"PEM certificates of the authorities of gateways. With it, gateways need a certificate."`
	ControlCert  string `group:"Start and server" name:"control-tls-cert" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_CONTROL_TLS_CERT" help:"PEM certificate of --control HOST:PORT. Default: no TLS."`
	ControlKey   string `group:"Start and server" name:"control-tls-key" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_CONTROL_TLS_KEY" help:"PEM key of --control-tls-cert."`
	ControlCA    string `group:"Start and server" name:"control-tls-client-ca" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_CONTROL_TLS_CLIENT_CA" help:"PEM certificates of the authorities of operators. With it, operators need a certificate."`
	ServiceCert  string `group:"Start and server" name:"service-tls-cert" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_SERVICE_TLS_CERT" help:"PEM certificate of --indexer-port and --selection-port. Default: no TLS."`
	ServiceKey   string `group:"Start and server" name:"service-tls-key" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_SERVICE_TLS_KEY" help:"PEM key of --service-tls-cert."`
	ServiceCA    string `group:"Start and server" name:"service-tls-client-ca" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_SERVICE_TLS_CLIENT_CA" help:"PEM certificates of the authorities of the callers of these ports. With it, callers need a certificate."`
	HTTPCert     string `group:"Start and server" name:"http-tls-cert" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_HTTP_TLS_CERT" help:"PEM certificate of --http. Default: no TLS."`
	HTTPKey      string `group:"Start and server" name:"http-tls-key" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_HTTP_TLS_KEY" help:"PEM key of --http-tls-cert."`
	HTTPClientCA string `group:"Start and server" name:"http-tls-client-ca" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_HTTP_TLS_CLIENT_CA" help:"PEM certificates of the authorities of the callers of --http. With it, callers need a certificate."`
}

// clients returns the files of the clients' listener, gateways those of --ext-proc, http those
// of --http, operators those of --control, services those of the ports in Dynamo's shapes.
func (f *tlsFlags) clients() servertls.Files {
	return servertls.Files{Cert: f.Cert, Key: f.Key, ClientCA: f.ClientCA}
}

func (f *tlsFlags) gateways() servertls.Files {
	return servertls.Files{Cert: f.ExtCert, Key: f.ExtKey, ClientCA: f.ExtClientCA}
}

func (f *tlsFlags) operators() servertls.Files {
	return servertls.Files{Cert: f.ControlCert, Key: f.ControlKey, ClientCA: f.ControlCA}
}

func (f *tlsFlags) services() servertls.Files {
	return servertls.Files{Cert: f.ServiceCert, Key: f.ServiceKey, ClientCA: f.ServiceCA}
}

func (f *tlsFlags) http() servertls.Files {
	return servertls.Files{Cert: f.HTTPCert, Key: f.HTTPKey, ClientCA: f.HTTPClientCA}
}

// listen returns a listener at address that speaks TLS with the certificates of files, or plain TCP
// without files. limited adds limits for connections; it is applied below TLS, so that connections
// in a handshake count.
func listen(ctx context.Context, address string, files servertls.Files, limited func(net.Listener) net.Listener, log *zap.Logger) (net.Listener, error) {
	plain, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return secure(plain, files, limited, log)
}

// secure adds limits and TLS to a listener as listen does. It closes plain when files are bad.
func secure(plain net.Listener, files servertls.Files, limited func(net.Listener) net.Listener, log *zap.Logger) (net.Listener, error) {
	plain = limited(plain)
	l, err := files.Listen(plain, log)
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	return l, nil
}

// openDoor is the front door with what it owns.
type openDoor struct {
	*frontend.Door
	prompts *tokens.Source
	tracer  *spans.Tracer // nil without tracing
	clients net.Listener  // nil for a door that only gateways use
	// picker serves gateways on gateways; nil without --ext-proc.
	picker   *extproc.Server
	gateways net.Listener
}

// connections returns a function that adds the limits of the flags to a listener: connections in all
// and of one address. m gets the listener's numbers, under names that begin with prefix. keepIdle is
// for a server that does not tell which connections are idle.
func (f *doorFlags) connections(m *metrics.Metrics, prefix string, keepIdle bool) func(net.Listener) net.Listener {
	return func(l net.Listener) net.Listener {
		limited := connlimit.Listen(l, connlimit.Limits{All: f.MaxConns, PerAddress: f.ClientConns, KeepIdle: keepIdle})
		metrics.AddStats(m, prefix, limited.Stats)
		metrics.AddReasons(m, prefix+"connections_closed_total",
			"Connections closed because of a limit: idle ones, or new ones that were refused.",
			func() connlimit.Closed { return limited.Stats().Closed })
		return limited
	}
}

// openDoor opens the front door: the listeners at which clients send requests to engines, and
// gateways ask for a worker over ext-proc. Nothing is served before serve. It returns nil when the
// settings ask for neither.
func (c *Router) openDoor(ctx context.Context, r *router.Router, d *workers.Directory, log *zap.Logger) (*openDoor, error) {
	address, open := c.settings.doorAddress(c.serverFlags.given())
	if !open && c.ExtProc == "" {
		return nil, nil
	}
	var keys *tenant.Keys
	if c.APIKeys != "" {
		var err error
		if keys, err = tenant.Open(c.APIKeys, log.Named("door")); err != nil {
			return nil, fmt.Errorf("--api-keys: %w", err)
		}
	}
	render := tokens.Server{}
	if c.RenderURL != "" {
		base, err := workers.CleanURL(c.RenderURL)
		if err != nil {
			return nil, fmt.Errorf("--render-url: %w", err)
		}
		render = tokens.Server{URL: base, Render: true}
	}
	tracer, err := spans.Open(log.Named("spans"))
	if err != nil {
		return nil, err
	}
	prompts := tokens.New(tokens.Options{Servers: tokenizers{d}, Render: render})
	door, err := frontend.New(frontend.Options{
		Router: r, Workers: d, Tokens: prompts, Keys: keys, Pass: c.Pass, TrustedOrigins: c.Origins, Timeout: c.RequestTime, MaxRequests: c.MaxRequests, MaxClientRequests: c.MaxClient,
		Admission:      admission.Limits{Running: c.MaxRunning, Waiting: c.MaxWaiting, Wait: c.MaxWait},
		Split:          splitOf(c.settings.Disaggregation()),
		SessionTTL:     c.settings.SessionTTL(),
		OverloadStatus: int(c.settings.HTTPOverloadStatus), Tracer: tracer, AccessLog: c.AccessLog, Log: log.Named("door"),
	})
	o := &openDoor{Door: door, prompts: prompts, tracer: tracer}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	if !open {
		address = ""
	}
	if err := o.listen(ctx, address, c, d, r.Metrics(), log); err != nil {
		return nil, errors.Join(err, o.close())
	}
	metrics.AddStats(r.Metrics(), "blockyard_frontend_", prompts.Stats)
	metrics.AddStats(r.Metrics(), "blockyard_frontend_", tracer.Stats)
	metrics.AddStats(r.Metrics(), "blockyard_frontend_workers_", d.Stats)
	door.Measure(r.Metrics())
	return o, nil
}

// splitOf returns the door's options of the settings for prefill and decode workers.
func splitOf(a config.Disaggregation) frontend.Split {
	s := frontend.Split{Rule: split.Rule{MinTokens: a.MinTokens}, Timeout: a.Timeout, Wait: a.Wait}
	if a.Conditional {
		s.Rule.Conditional = &split.Conditional{Bounds: a.Bounds, Tokens: a.Tokens, Ratio: a.Ratio, PrefillBusy: a.PrefillBusy, DecodeBusy: a.DecodeBusy}
	}
	return s
}

// listen opens the listener for clients at the address clients, or none for an empty one, and the
// listener for gateways if --ext-proc is set. After an error no listener is open.
func (o *openDoor) listen(ctx context.Context, clients string, c *Router, d *workers.Directory, m *metrics.Metrics, log *zap.Logger) (err error) {
	if c.ExtProc != "" {
		if o.picker, err = extproc.New(extproc.Options{Door: o.Door, Workers: d, OnlyChosen: !c.Fallbacks, Log: log.Named("ext-proc")}); err != nil {
			return err
		}
		if o.gateways, err = listen(ctx, c.ExtProc, c.tlsFlags.gateways(), c.connections(m, "blockyard_ext_proc_", true), log.Named("ext-proc")); err != nil {
			return fmt.Errorf("gateways' listener (--ext-proc, --ext-proc-tls-cert): %w", err)
		}
	}
	if clients != "" {
		if o.clients, err = listen(ctx, clients, c.tlsFlags.clients(), c.connections(m, "blockyard_frontend_", false), log.Named("door")); err != nil {
			return errors.Join(fmt.Errorf("clients' listener (--http-port, --tls-cert): %w", err), closeAll(o.gateways))
		}
	}
	return nil
}

// serve serves the open listeners, for clients and gateways, until ctx ends. Then it closes
// what the door owns.
func (o *openDoor) serve(ctx context.Context) error {
	go resource.Trim(ctx) // bursts of prompts leave garbage behind
	g, ctx := errgroup.WithContext(ctx)
	if o.clients != nil {
		g.Go(func() error { return o.Serve(ctx, o.clients) })
	}
	if o.picker != nil {
		g.Go(func() error { return o.picker.Serve(ctx, o.gateways) })
	}
	return errors.Join(g.Wait(), o.close())
}

// close ends what the door owns, besides its listeners.
func (o *openDoor) close() error {
	o.prompts.Close()
	return o.tracer.Close()
}

// addresses adds the addresses of the open listeners to ready, the JSON line that says the router is
// ready.
func (o *openDoor) addresses(ready map[string]any) {
	if o.clients != nil {
		ready["door"] = o.clients.Addr().String()
	}
	if o.gateways != nil {
		ready["ext_proc"] = o.gateways.Addr().String()
	}
}

// tokenize implements api.Options.Tokenize: body is a completion or, with messages, a chat. The model
// may be left out when workers serve one.
func (o *openDoor) tokenize(r *router.Router) func(ctx context.Context, body []byte) (api.Tokenized, error) {
	if o == nil {
		return nil
	}
	return func(ctx context.Context, body []byte) (api.Tokenized, error) {
		var chat struct {
			Messages json.RawMessage `json:"messages"`
		}
		route := openai.Completions
		if json.Unmarshal(body, &chat) == nil && chat.Messages != nil {
			route = openai.Chat
		}
		request, err := openai.Parse(route, body)
		if err != nil {
			return api.Tokenized{}, err
		}
		t := api.Tokenized{Model: request.Model}
		if t.Model == "" {
			model, err := r.Model("")
			if err != nil {
				return t, err
			}
			t.Model = model.Key().Name
		}
		p, err := o.prompts.Tokens(ctx, t.Model, request)
		t.Tokens, t.Exact, t.Reason = p.Tokens, p.Exact, p.Reason
		return t, err
	}
}

// tokenizers shows the servers of a directory to package tokens.
type tokenizers struct{ directory *workers.Directory }

// Tokenizers implements tokens.Servers: it returns the ready servers of a model that turn prompts
// into tokens, each with the header that authorizes a request.
func (t tokenizers) Tokenizers(model string) []tokens.Server {
	ready := t.directory.Tokenizers(model)
	all := make([]tokens.Server, len(ready))
	for i, w := range ready {
		h := make(http.Header)
		w.Authorize(h)
		all[i] = tokens.Server{URL: w.URL, Render: w.Facts.Render, Authorization: h.Get("Authorization")}
	}
	return all
}

// serviceFlags are the flags of "blockyard router" for listeners in the shapes of Dynamo's
// services.
type serviceFlags struct {
	ServiceHost  string `group:"Start and server" name:"service-host" default:"127.0.0.1" placeholder:"HOST" env:"BLOCKYARD_ROUTER_SERVICE_HOST" help:"Address of --indexer-port and --selection-port. Their clients may add workers, so give a private one."`
	IndexerPort  uint16 `group:"Start and server" name:"indexer-port" placeholder:"PORT" env:"BLOCKYARD_ROUTER_INDEXER_PORT" help:"Port with the HTTP interface of Dynamo's standalone indexer, which has 8090; 0 is off."`
	Selection    uint16 `group:"Start and server" name:"selection-port" placeholder:"PORT" env:"BLOCKYARD_ROUTER_SELECTION_PORT" help:"Port with the HTTP interface of Dynamo's selection service, which has 8092; 0 is off."`
	CacheTTL     uint32 `group:"Start and server" name:"selection-cache-ttl-secs" range:"1..31536000" default:"${selection_ttl}" placeholder:"N" env:"BLOCKYARD_ROUTER_SELECTION_CACHE_TTL_SECS" help:"Seconds that a choice of --selection-port may wait for its reservation."`
	CacheEntries uint32 `group:"Start and server" name:"selection-cache-max-entries" range:"1..16777216" default:"${selection_entries}" placeholder:"N" env:"BLOCKYARD_ROUTER_SELECTION_CACHE_MAX_ENTRIES" help:"Choices that wait, at most; more drop the oldest."`
	CacheBytes   uint32 `group:"Start and server" name:"selection-cache-max-bytes" range:"1..4294967295" default:"${selection_bytes}" placeholder:"N" env:"BLOCKYARD_ROUTER_SELECTION_CACHE_MAX_BYTES" help:"Bytes of choices that wait, at most; more drop the oldest."`
}

// serviceDrain is how long requests to a service may continue after the end.
const serviceDrain = 2 * time.Second

// errStopping is why a request to a service ends that has not finished within serviceDrain.
var errStopping = errors.New("the router is stopping")

// given reports whether any service is on.
func (c *serviceFlags) given() bool { return c.IndexerPort > 0 || c.Selection > 0 }

// openServices starts goroutines in g that serve the optional services until ctx ends: the
// interfaces of Dynamo's indexer and selection service, each if its port is set. d has the URLs
// of worker servers and may be nil. The error names the flag of a port that cannot be opened.
func (c *Router) openServices(ctx context.Context, g *errgroup.Group, r *router.Router, s *routerSources, d *workers.Directory, log *zap.Logger) error {
	if c.IndexerPort > 0 {
		o := indexer.Options{Router: r, Log: log.Named("indexer")}
		if s.engines != nil {
			o.Follower = s.engines
		}
		if err := c.openService(ctx, g, "indexer", c.IndexerPort, indexer.New(o).Handler(), r.Metrics(), log); err != nil {
			return err
		}
	}
	if c.Selection == 0 {
		return nil
	}
	o := selection.Options{Router: r, Registry: s.Source, Log: log.Named("selection"),
		Cache: selection.CacheLimits{TTL: time.Duration(c.CacheTTL) * time.Second, Entries: int(c.CacheEntries), Bytes: int64(c.CacheBytes)}}
	if s.engines != nil {
		o.Follower = s.engines
	}
	if d != nil {
		o.Endpoint = func(id kv.WorkerID) string {
			if w, ok := d.Worker(id); ok {
				return w.URL
			}
			return ""
		}
	}
	service := selection.New(o)
	if err := c.openService(ctx, g, "selection", c.Selection, service.Handler(), r.Metrics(), log); err != nil {
		return err
	}
	g.Go(func() error { return service.Run(ctx) })
	return nil
}

// openService serves h on a port in g until ctx ends. The service's name is in the flag of its port and
// in its metrics, which m gets.
func (c *Router) openService(ctx context.Context, g *errgroup.Group, name string, port uint16, h http.Handler, m *metrics.Metrics, log *zap.Logger) error {
	flag := "--" + name + "-port"
	listener, err := listen(ctx, net.JoinHostPort(c.ServiceHost, strconv.Itoa(int(port))), c.tlsFlags.services(), c.connections(m, "blockyard_"+name+"_", false), log)
	if err != nil {
		return fmt.Errorf("%s, --service-tls-cert: %w", flag, err)
	}
	log.Info("a service of Dynamo's shape is open", zap.String("flag", flag), zap.Stringer("address", listener.Addr()))
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, ErrorLog: zap.NewStdLog(log), ConnState: connlimit.State}
	g.Go(func() error { return drain.Serve(ctx, server, listener, serviceDrain, errStopping) })
	return nil
}
