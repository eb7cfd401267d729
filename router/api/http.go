package api

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/connlimit"
	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/drain"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// Headers of POST /v1/route.
const (
	// RequestIDHeader names the request. The answer to "new" carries the given id, or a
	// new one.
	RequestIDHeader = "X-Request-Id"
	// QualityHeader carries the Quality of the decision.
	QualityHeader = "X-Blockyard-Quality"
	// ScoreHeader says how workers were compared: "price", "weights", or "weights: " and why not by price.
	ScoreHeader = "X-Blockyard-Score"
)

// openAPI is the OpenAPI document of both listeners' paths.
//
//go:embed openapi.json
var openAPI json.RawMessage

// Options configure an API.
type Options struct {
	// Registration lets clients of Handler register workers. ControlHandler always accepts
	// registrations.
	Registration bool
	// Servers are the worker servers, for GET /v1/servers and for draining; nil without.
	Servers *workers.Directory
	// Tokens are the tokens of operators, for ControlHandler; nil asks for none.
	Tokens *control.Tokens
	// Tokenize returns the tokens of an OpenAI request, for POST /v1/tokens; nil without a front
	// door. Without tokens Tokenized.Reason says why. The error says what is wrong with the request.
	Tokenize func(ctx context.Context, body []byte) (Tokenized, error)
	// Version is the program's, for the console.
	Version string
	// Log may be nil. ControlHandler logs each call there.
	Log *zap.Logger
}

// API serves a router over HTTP and NATS. Its methods are safe for concurrent use.
type API struct {
	router       *router.Router
	log          *zap.Logger
	registration bool
	directory    *workers.Directory // nil without worker servers
	operators    control.Operators
	tokenize     func(ctx context.Context, body []byte) (Tokenized, error) // nil without a front door
	version      string
	service      *service
}

// New returns the API of a router.
func New(r *router.Router, o Options) *API {
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return &API{
		router: r, log: o.Log, registration: o.Registration, directory: o.Servers, tokenize: o.Tokenize,
		operators: control.Operators{Tokens: o.Tokens, Log: o.Log},
		version:   o.Version, service: newService(r, o.Servers),
	}
}

// Handler returns the HTTP handler for clients: POST /v1/route, GET /v1/workers, /v1/feeds,
// /v1/misses, /v1/decisions, /v1/history, /v1/sources, POST /v1/tokens, GET /busy_threshold, /metrics, /healthz and /readyz, the console, and GET /v1/agents with a
// registry. With Options.Registration it also serves POST and DELETE /v1/workers.
// docs/router-api.md describes the paths.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/route", func(w http.ResponseWriter, req *http.Request) { a.route(w, req, a.registration) })
	a.inspection(mux)
	console.Mount(mux, console.Router, a.version)
	// These paths answer 403 here and name the control listener.
	a.controlOnly(mux, "GET /v1/dump", "GET /v1/bookings", "POST /busy_threshold", drainPath, undrainPath, snapshotPath)
	switch g := a.router.Registry(); {
	case g != nil && a.registration:
		a.register(mux, g)
	case g != nil:
		a.controlOnly(mux, "POST /v1/workers", "DELETE /v1/workers")
	}
	mux.Handle("GET /metrics", a.router.Metrics().Handler())
	return control.RefuseCrossSite(mux)
}

// inspection adds the read-only paths, which clients' and operators' handlers share. The paths of
// agents need a registry, and those of worker servers need a directory.
func (a *API) inspection(mux *http.ServeMux) {
	r := a.router
	mux.HandleFunc("GET /v1/workers", a.workers)
	mux.HandleFunc("GET /v1/feeds", a.feeds)
	mux.HandleFunc("GET /v1/misses", a.misses)
	mux.HandleFunc("GET /v1/decisions", a.decisions)
	mux.Handle("GET /v1/history", r.History())
	mux.HandleFunc("POST /v1/tokens", a.tokens)
	mux.HandleFunc("GET /v1/sources", a.sources)
	mux.HandleFunc("GET /busy_threshold", a.busy)
	if g := r.Registry(); g != nil {
		mux.HandleFunc("GET /v1/agents", func(w http.ResponseWriter, _ *http.Request) { a.agents(w, g) })
	}
	if d := a.directory; d != nil {
		mux.HandleFunc("GET /v1/servers", func(w http.ResponseWriter, _ *http.Request) { a.servers(w, d) })
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) { a.answer(w, http.StatusOK, openAPI) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.Ready(); err != nil {
			a.fail(w, http.StatusServiceUnavailable, err)
			return
		}
		a.answer(w, http.StatusOK, map[string]string{"status": "ready"})
	})
}

// drainTimeout is how long requests may continue after the end of ctx.
const drainTimeout = 2 * time.Second

// Serve answers HTTP on l until ctx ends. Then it lets requests finish, answers requests that
// still wait for a worker with an error, and closes l. The error is nil after the end of ctx.
func (a *API) Serve(ctx context.Context, l net.Listener) error {
	return a.serve(ctx, l, a.Handler(), drainTimeout)
}

// serve answers HTTP on l with h until ctx ends, and then closes l. After the end of ctx,
// requests have the time patience to finish. Then requests that still wait for a worker are
// answered with errStopping. The error is nil after the end of ctx.
func (a *API) serve(ctx context.Context, l net.Listener, h http.Handler, patience time.Duration) error {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          zap.NewStdLog(a.log),
		ConnState:         connlimit.State,
	}
	return drain.Serve(ctx, server, l, patience, errStopping)
}

// route answers POST /v1/route. registers is true when the client may register workers. When the
// reply cannot be delivered, route frees the booking: the load that the decision has put on a
// worker.
func (a *API) route(w http.ResponseWriter, req *http.Request, registers bool) {
	host, _, _ := net.SplitHostPort(req.RemoteAddr) // callers without an address are one client
	out := a.service.route(req.Context(), http.MaxBytesReader(w, req.Body, maxBody), caller{
		id: req.Header.Get(RequestIDHeader), client: host, registers: registers,
		readBy: bodies.ReadBy(w, req),
	})
	control.About(req, out.about)
	if out.readOnly {
		control.ReadOnly(req)
	}
	for name, value := range out.headers() {
		w.Header().Set(name, value)
	}
	if err := a.deliverRoute(w, &out); err != nil {
		a.undelivered(err)
		if out.unbook != nil {
			out.unbook()
		}
	}
}

// deliverRoute delivers a reply. It flushes a reply with a booking, because only a flush shows
// that the client has left. A client that leaves later may have read the reply.
func (a *API) deliverRoute(w http.ResponseWriter, out *reply) error {
	if err := deliver(w, out.status, out.body); err != nil || out.unbook == nil {
		return err
	}
	if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// feedAnswer is one feed in GET /v1/feeds.
type feedAnswer struct {
	PublisherID         string `json:"publisher_id"`
	Owner               string `json:"owner"`
	Pool                uint64 `json:"pool"`
	Cursor              uint64 `json:"cursor"`
	Announced           uint64 `json:"announced"`
	Health              string `json:"health"`
	Gaps                uint64 `json:"gaps"`
	Repaired            uint64 `json:"repaired"`
	Divergences         uint64 `json:"divergences"`
	DivergencesRepaired uint64 `json:"divergences_repaired"`
	DigestOK            bool   `json:"digest_ok"`
	// Rival is the fenced publisher that still announces the owner.
	Rival string `json:"rival,omitempty"`
}

// feeds answers GET /v1/feeds: for each publisher that the router follows, how far the router is,
// and which losses it has found and repaired.
func (a *API) feeds(w http.ResponseWriter, _ *http.Request) {
	out := []feedAnswer{}
	for _, f := range a.router.Feeds() {
		rival := ""
		if f.Rival != 0 {
			rival = source.PublisherName(f.Rival)
		}
		out = append(out, feedAnswer{
			PublisherID: source.PublisherName(f.PublisherID), Owner: f.Owner.String(), Pool: f.Pool,
			Cursor: f.Cursor, Announced: f.Announced, Health: string(f.Health),
			Gaps: f.Counters.Gaps, Repaired: f.Counters.GapsRepaired,
			Divergences: f.Counters.Divergences, DivergencesRepaired: f.Counters.DivergencesRepaired,
			DigestOK: f.DigestOK, Rival: rival,
		})
	}
	a.answer(w, http.StatusOK, out)
}

// fail answers with an error.
func (a *API) fail(w http.ResponseWriter, code int, err error) {
	out := a.service.fail(code, err)
	a.answer(w, out.status, out.body)
}

// answer answers with v as JSON.
func (a *API) answer(w http.ResponseWriter, code int, v any) {
	if err := deliver(w, code, v); err != nil {
		a.undelivered(err)
	}
}

// undelivered logs an answer whose client has left.
func (a *API) undelivered(err error) { a.log.Debug("answer is not delivered", zap.Error(err)) }

// deliver answers with the status code and v as JSON. The error says that the client did not
// get the answer.
func deliver(w http.ResponseWriter, code int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(code)
	_, err = w.Write(append(body, '\n'))
	return err
}

// headerText returns the start of s as one header value: at most 512 bytes, with blanks for
// control characters.
func headerText(s string) string {
	const limit = 512
	b := []byte(s[:min(len(s), limit)])
	for i, c := range b {
		if c < ' ' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// sources answers GET /v1/sources.
func (a *API) sources(w http.ResponseWriter, _ *http.Request) {
	all := a.router.Sources()
	if all == nil {
		all = []source.Metrics{}
	}
	a.answer(w, http.StatusOK, all)
}

// agents answers GET /v1/agents.
func (a *API) agents(w http.ResponseWriter, g *registry.Source) {
	all := g.Agents()
	if all == nil {
		all = []source.Agent{}
	}
	a.answer(w, http.StatusOK, all)
}
