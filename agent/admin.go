package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	adminReadTimeout = 10 * time.Second
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
	mux.HandleFunc("GET /v1/pools", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.dumpPools()) })
	a.registerControl(mux)
	return &adminServer{http: &http.Server{Handler: mux, ReadTimeout: adminReadTimeout}}
}

// newKVBMServer serves KVBM's metrics, at the path and on the kind of address
// that KVBM has them.
func newKVBMServer(a *Agent) *adminServer {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", kvbmHandler(a.Stats, a.cfg.bypassesHost()))
	return &adminServer{http: &http.Server{Handler: mux, ReadTimeout: adminReadTimeout}}
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

// poolDump is one pool in GET /v1/pools.
type poolDump struct {
	Pool       uint64      `json:"pool"`
	Namespace  string      `json:"namespace"`
	Model      string      `json:"model"`
	BlockBytes uint64      `json:"block_bytes"`
	Blocks     []blockDump `json:"blocks"`
}

type blockDump struct {
	Key string `json:"key"`
	// Hash is the SequenceHash, 16 hexadecimal digits.
	Hash  string        `json:"hash"`
	Tiers []string      `json:"tiers"`
	Host  *locationDump `json:"host,omitempty"`
	Disk  *locationDump `json:"disk,omitempty"`
}

type locationDump struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
}

func (a *Agent) dumpPools() []poolDump {
	dumps := []poolDump{}
	for _, p := range a.manager.Pools() {
		d := poolDump{
			Pool: poolID(a.cfg.Node, p.NamespaceID()), Namespace: p.NamespaceID().String(), Model: p.Namespace().Model,
			BlockBytes: p.BlockBytes(), Blocks: []blockDump{},
		}
		for _, b := range p.Dump() {
			d.Blocks = append(d.Blocks, dumpBlock(b))
		}
		dumps = append(dumps, d)
	}
	return dumps
}

func dumpBlock(b blockmgr.BlockInfo) blockDump {
	d := blockDump{Key: b.Block.Key.String(), Hash: hex16(uint64(b.Block.Seq)), Tiers: []string{}}
	for _, t := range kv.Tiers {
		if b.Tiers.Has(t) {
			d.Tiers = append(d.Tiers, t.String())
		}
	}
	if b.Tiers.Has(kv.TierHost) {
		d.Host = &locationDump{Path: b.Host.Path, Offset: b.Host.Offset}
	}
	if b.Tiers.Has(kv.TierDisk) {
		d.Disk = &locationDump{Path: b.Disk.Path, Offset: b.Disk.Offset}
	}
	return d
}
