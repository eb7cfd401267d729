package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/blockyard-ai/blockyard/internal/control"
)

const (
	adminReadTimeout = 10 * time.Second
	// adminWriteTimeout bounds how long a client may take to read an answer; one in
	// pieces has as long for each piece.
	adminWriteTimeout = 30 * time.Second
	// adminDrainTimeout bounds the wait for answers in progress at the end.
	adminDrainTimeout = 500 * time.Millisecond
)

// adminServer is the agent's HTTP server.
type adminServer struct {
	http *http.Server
}

func newAdminServer(a *Agent) *adminServer {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if a.ready.Load() {
			writeText(w, http.StatusOK, "ready\n")
			return
		}
		writeText(w, http.StatusServiceUnavailable, "not ready\n")
	})
	mux.Handle("GET /metrics", metricsHandler(a.Stats))
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.Stats()) })
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.poolStatus()) })
	a.out.http.Register(mux)
	return newHTTPServer(jsonErrors(mux))
}

// newControlServer serves what operators may do and see.
func newControlServer(a *Agent) *adminServer {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/pools", a.servePools)
	mux.HandleFunc("POST /v1/reset", controlHandler(a.reset))
	mux.HandleFunc("POST /v1/reset-blocks", controlHandler(a.resetBlocks))
	mux.HandleFunc("POST /v1/keep", controlHandler(a.keep))
	return newHTTPServer(control.Protect(jsonErrors(mux)))
}

// newKVBMServer serves KVBM's metrics, at the path and on the kind of address
// that KVBM has them.
func newKVBMServer(a *Agent) *adminServer {
	tiers := a.cfg.tiers()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", kvbmHandler(a.Stats, tiers.BypassesHost()))
	return newHTTPServer(mux)
}

func newHTTPServer(h http.Handler) *adminServer {
	return &adminServer{http: &http.Server{Handler: h, ReadTimeout: adminReadTimeout, WriteTimeout: adminWriteTimeout}}
}

// serve answers until close.
func (s *adminServer) serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *adminServer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), adminDrainTimeout)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		return s.http.Close()
	}
	return nil
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
