package remote

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
)

const (
	group = "blockyard-indexers"
	// maxWaiting bounds the questions that wait, and maxWait how long one does. The router that asked has given
	// up then.
	maxWaiting = 1024
	maxWait    = defaultTimeout
)

// ServerStats is a snapshot of a server's counters. The metric names follow "blockyard_router_".
type ServerStats struct {
	Queries   uint64 `metric:"served_indexer_queries" help:"Questions of other routers to this router's index that were answered."`
	Refused   uint64 `metric:"served_indexer_refused" help:"Questions of other routers that could not be read, or about a model without a publisher here."`
	Dropped   uint64 `metric:"served_indexer_dropped" help:"Questions of other routers dropped from a full queue."`
	Stale     uint64 `metric:"served_indexer_stale" help:"Questions of other routers that waited for 100 ms and were not looked up, because the router that asked had given up."`
	Truncated uint64 `metric:"served_indexer_truncated" help:"Answers with the first 16,384 workers alone."`
}

// Lookup looks a question up: it fills dst and returns the quality of the hits. ok is false for an unknown
// model.
type Lookup func(dst *index.Matches, q *Query) (quality feed.Quality, ok bool)

// Server answers questions of other routers. Make one with Serve.
type Server struct {
	lookup                             Lookup
	matches                            index.Matches // of the one question at a time
	stop                               func()
	droppedNow                         func() uint64
	queries, refused, stale, truncated atomic.Uint64
}

// Serve answers questions of other routers by lookup until Stop. The error says that the bus takes no
// subscription.
func Serve(bus Bus, lookup Lookup) (*Server, error) {
	s := &Server{lookup: lookup}
	var err error
	if s.stop, s.droppedNow, err = bus.AnswerGroup(group, Subject(bus.Cluster()), maxWaiting, s.answer); err != nil {
		return nil, fmt.Errorf("serve indexer: %w", err)
	}
	return s, nil
}

// Stop ends the answers.
func (s *Server) Stop() { s.stop() }

// Stats returns the counters.
func (s *Server) Stats() ServerStats {
	return ServerStats{Queries: s.queries.Load(), Refused: s.refused.Load(), Dropped: s.droppedNow(),
		Stale: s.stale.Load(), Truncated: s.truncated.Load()}
}

var (
	errUnknownModel = errors.New("index query: no publisher of the model is known")
	errStale        = fmt.Errorf("index query: waited for more than %v", maxWait)
)

func (s *Server) answer(request []byte, arrived time.Time) ([]byte, error) {
	if time.Since(arrived) > maxWait {
		s.stale.Add(1)
		return nil, errStale
	}
	q, err := decodeQuery(request)
	if err != nil {
		s.refused.Add(1)
		return nil, err
	}
	s.matches.MaxTokens, s.matches.PrimaryGroup = q.MaxTokens, q.PrimaryGroup
	quality, ok := s.lookup(&s.matches, &q)
	if !ok {
		s.refused.Add(1)
		return nil, errUnknownModel
	}
	a := Answer{Quality: quality, Known: fingerprint(s.matches.Members)}
	for _, h := range s.matches.Hits[:min(len(s.matches.Hits), maxWorkers)] {
		a.Workers = append(a.Workers, Held{s.matches.Members.List[h.Member].Worker, h.Hits})
	}
	if len(s.matches.Hits) > maxWorkers {
		s.truncated.Add(1)
	}
	s.queries.Add(1)
	return appendAnswer(nil, &a), nil
}
