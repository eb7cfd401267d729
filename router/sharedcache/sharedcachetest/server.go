package sharedcachetest

import (
	"encoding/json"
	"net/http"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Server is a shared cache that holds a set of hashes in memory and no blocks. The
// zero value is ready. It is an http.Handler of
//
//	POST /check_blocks  {"block_hashes":[…]}  →  {"ranges":[[0,2],[3,4]]}
type Server struct {
	mu     sync.Mutex
	held   map[kv.SequenceHash]struct{}
	failed bool
}

var _ http.Handler = (*Server)(nil)

type question struct {
	Hashes []kv.SequenceHash `json:"block_hashes"`
}

// Store adds blocks.
func (s *Server) Store(hashes ...kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(map[kv.SequenceHash]struct{})
	}
	for _, h := range hashes {
		s.held[h] = struct{}{}
	}
}

// Fail makes every request fail, or ends that.
func (s *Server) Fail(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = failed
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var q question
	if req.Method == http.MethodPost {
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 32<<20)).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch route := req.Method + " " + req.URL.Path; {
	case s.failed:
		http.Error(w, "told to fail", http.StatusServiceUnavailable)
	case route == "POST /check_blocks":
		s.answer(w, http.StatusOK, map[string]any{"ranges": s.rangesLocked(q.Hashes)})
	default:
		http.NotFound(w, req)
	}
}

// rangesLocked returns the half-open ranges of positions whose hashes are held.
func (s *Server) rangesLocked(hashes []kv.SequenceHash) [][2]int {
	ranges := [][2]int{}
	for i, h := range hashes {
		if _, held := s.held[h]; !held {
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

func (s *Server) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// Encode fails only when the client has gone.
	_ = json.NewEncoder(w).Encode(v)
}
