package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	listener "github.com/blockyard-ai/blockyard/internal/control"
)

const (
	readTimeout = 10 * time.Second
	// writeTimeout bounds how long a client may take to read an answer; one in
	// pieces has as long for each piece.
	writeTimeout = 30 * time.Second
	// drainTimeout bounds the wait for answers in progress at the end.
	drainTimeout = 500 * time.Millisecond
)

// Public is what everybody may see who reaches the agent: health, metrics, statistics and
// events.
type Public struct {
	Pools Pools
	// Ready says that the agent serves engines.
	Ready func() bool
	// Stats returns what GET /v1/stats shows.
	Stats func() any
	// Metrics serves GET /metrics.
	Metrics http.Handler
	// Events adds the routes of the events.
	Events func(*http.ServeMux)
}

// Handler serves p.
func (p Public) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if p.Ready() {
			writeText(w, http.StatusOK, "ready\n")
			return
		}
		writeText(w, http.StatusServiceUnavailable, "not ready\n")
	})
	mux.Handle("GET /metrics", p.Metrics)
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.Stats()) })
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, statusOf(p.Pools)) })
	p.Events(mux)
	return jsonErrors(mux)
}

// Control is what operators may do with pools, and see of them.
func Control(p Pools) http.Handler {
	c := &control{p}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/pools", c.servePools)
	mux.HandleFunc("POST /v1/reset", controlHandler(c.reset))
	mux.HandleFunc("POST /v1/reset-blocks", controlHandler(c.resetBlocks))
	mux.HandleFunc("POST /v1/keep", controlHandler(c.keep))
	return listener.Protect(jsonErrors(mux))
}

// Server answers on one listener.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// NewServer answers with h what comes over l, once Serve is called. It takes l over.
func NewServer(l net.Listener, h http.Handler) *Server {
	return &Server{listener: l, http: &http.Server{Handler: h, ReadTimeout: readTimeout, WriteTimeout: writeTimeout}}
}

// Addr is the address of the listener, with its real port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close lets answers in progress end, but not for long, and closes the listener.
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
	_, _ = w.Write([]byte(text)) // the client has gone: nobody to tell
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client has gone: nobody to tell
}

// writeError answers with a status that is not 200.
func writeError(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // the client has gone: nobody to tell
		Error string `json:"error"`
	}{text})
}

// jsonErrors has a mux refuse unknown paths and methods as its handlers refuse
// what they do not take.
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

// refusedRequest takes the status of an answer and throws its body away.
type refusedRequest struct {
	header http.Header
	status int
}

func (r *refusedRequest) Header() http.Header         { return r.header }
func (r *refusedRequest) Write(b []byte) (int, error) { return len(b), nil }
func (r *refusedRequest) WriteHeader(status int)      { r.status = status }
