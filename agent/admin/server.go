package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/console"
	listener "github.com/blockyard-ai/blockyard/internal/control"
)

const (
	readTimeout = 10 * time.Second
	// writeTimeout bounds how long a client may take to read an answer, or one chunk of it.
	writeTimeout = 30 * time.Second
	// drainTimeout bounds the wait for unfinished answers at the end.
	drainTimeout = 500 * time.Millisecond
)

// Public serves the requests that every client of the agent may send: health, metrics,
// statistics and events.
type Public struct {
	Pools Pools
	// Ready reports whether the agent serves engines.
	Ready func() bool
	// Stats returns the body of GET /v1/stats.
	Stats func() any
	// History serves GET /v1/history.
	History http.Handler
	// Version is the program's, for the console.
	Version string
	// Metrics serves GET /metrics.
	Metrics http.Handler
	// Events adds the routes of the events.
	Events func(*http.ServeMux)
}

// Handler returns the handler of the public requests. None changes what the agent keeps, except that
// a router's read-ahead hint begins bounded reads from disk into host memory. A browser's request
// for a page of another site cannot.
func (p Public) Handler() http.Handler {
	mux := http.NewServeMux()
	console.Mount(mux, console.Agent, p.Version)
	p.inspection(mux)
	mux.Handle("GET /metrics", p.Metrics)
	p.Events(mux)
	return listener.RefuseCrossSite(jsonErrors(mux))
}

// inspection adds the read-only paths that clients and operators share.
func (p Public) inspection(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if p.Ready() {
			writeText(w, http.StatusOK, "ready\n")
			return
		}
		writeText(w, http.StatusServiceUnavailable, "not ready\n")
	})
	mux.Handle("GET /v1/history", p.History)
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.Stats()) })
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, statusOf(p.Pools)) })
}

// Control returns the handler of the operators' requests: it resets, keeps, prefetches, flushes and lists blocks,
// and changes sizes and limits.
// It also serves what p serves, without metrics and events.
func (p Public) Control(operators listener.Operators) http.Handler {
	c := &control{p.Pools}
	mux := http.NewServeMux()
	p.inspection(mux)
	mux.HandleFunc("GET /v1/pools", c.servePools)
	mux.HandleFunc("POST /v1/reset", controlHandler(c.reset))
	mux.HandleFunc("POST /v1/reset-blocks", controlHandler(c.resetBlocks))
	mux.HandleFunc("POST /v1/keep", controlHandler(c.keep))
	mux.HandleFunc("POST /v1/unkeep", controlHandler(c.unkeep))
	mux.HandleFunc("POST /v1/flush", controlHandler(c.flush))
	mux.HandleFunc("POST /v1/prefetch", controlHandler(c.prefetch))
	mux.HandleFunc("POST /v1/resize", controlHandler(c.resize))
	mux.HandleFunc("GET /v1/quota", c.serveQuota)
	mux.HandleFunc("POST /v1/quota", controlHandler(c.setQuota))
	open := http.NewServeMux()
	console.Mount(open, console.Agent, p.Version) // it has no data, so that it needs no token
	return operators.HandlerBeside(open, jsonErrors(mux))
}

// Server serves one listener.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// NewServer makes a server for the connections of l with handler h. The server closes l. log gets what net/http
// has to say of connections, such as failed handshakes.
func NewServer(l net.Listener, h http.Handler, log *zap.Logger) *Server {
	return &Server{listener: l, http: &http.Server{
		Handler: h, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, ErrorLog: zap.NewStdLog(log),
	}}
}

// Addr returns the address of the listener, with its real port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve serves until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close waits drainTimeout for unfinished answers, and closes the listener.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	var err error
	if s.http.Shutdown(ctx) != nil {
		err = s.http.Close()
	}
	if closed := s.listener.Close(); !errors.Is(closed, net.ErrClosed) {
		err = errors.Join(err, closed)
	}
	return err
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client may have gone
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

// writeError answers with an error in JSON.
func writeError(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // the client may have gone
		Error string `json:"error"`
	}{text})
}

// jsonErrors makes a mux answer unknown paths and methods with an error in JSON.
func jsonErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		refused := refusedRequest{header: w.Header(), status: http.StatusOK}
		h.ServeHTTP(&refused, r)
		text := fmt.Sprintf("path %.200q: unknown", r.URL.Path)
		if refused.status == http.StatusMethodNotAllowed {
			text = fmt.Sprintf("method %.20q of %s: want %s", r.Method, r.URL.Path, w.Header().Get("Allow"))
		}
		writeError(w, refused.status, text)
	})
}

// refusedRequest keeps the status of an answer and drops its body.
type refusedRequest struct {
	header http.Header
	status int
}

func (r *refusedRequest) Header() http.Header         { return r.header }
func (r *refusedRequest) Write(b []byte) (int, error) { return len(b), nil }
func (r *refusedRequest) WriteHeader(status int)      { r.status = status }
