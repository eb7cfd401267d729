package sharedcache

import (
	"encoding/json"
	"net/http"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Double is a test double of a shared cache: a set of hashes in memory that Client
// can ask. It stores names and no blocks. The zero value is ready; it is an
// http.Handler of
//
//	POST /check_blocks  {"block_hashes":[…]}  →  {"ranges":[[0,2],[3,4]]}
type Double struct {
	mu     sync.Mutex
	held   map[kv.SequenceHash]struct{}
	failed bool
}

var _ http.Handler = (*Double)(nil)

type doubleRequest struct {
	Hashes []kv.SequenceHash `json:"block_hashes"`
}

// Store puts blocks into the cache.
func (d *Double) Store(hashes ...kv.SequenceHash) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		d.held = make(map[kv.SequenceHash]struct{})
	}
	for _, h := range hashes {
		d.held[h] = struct{}{}
	}
}

// Fail makes every request fail from now on, or no longer.
func (d *Double) Fail(failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = failed
}

// ServeHTTP implements http.Handler.
func (d *Double) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var q doubleRequest
	if req.Method == http.MethodPost {
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 32<<20)).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch route := req.Method + " " + req.URL.Path; {
	case d.failed:
		http.Error(w, "told to fail", http.StatusServiceUnavailable)
	case route == "POST /check_blocks":
		d.answer(w, http.StatusOK, map[string]any{"ranges": d.rangesLocked(q.Hashes)})
	default:
		http.NotFound(w, req)
	}
}

// rangesLocked are the half-open ranges of positions whose hashes are held.
func (d *Double) rangesLocked(hashes []kv.SequenceHash) [][2]int {
	ranges := [][2]int{}
	for i, h := range hashes {
		if _, held := d.held[h]; !held {
			continue
		}
		if n := len(ranges); n > 0 && ranges[n-1][1] == i {
			ranges[n-1][1]++
		} else {
			ranges = append(ranges, [2]int{i, i + 1})
		}
	}
	return ranges
}

func (d *Double) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// An error is the client's going away.
	_ = json.NewEncoder(w).Encode(v)
}
