package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Bounds of one session.
const (
	// maxSessionTokens and maxSessionBlocks bound the tokens and the complete blocks of all
	// open requests. A block costs about 120 bytes.
	maxSessionTokens = 64 << 20
	maxSessionBlocks = 4 << 20
	// maxGrants bounds the slots that are granted and neither committed nor aborted.
	maxGrants = 16384
	// maxWaitingLookups bounds the LOOKUPs that wait for the disk at a time. One more is
	// answered at once.
	maxWaitingLookups = 64
)

// session is a connected engine scheduler with its workers. The goroutine that reads the
// scheduler's connection calls its methods, except join, leave, gauges, cachedHashes and the
// lookups that wait. Lock order: mu, then process.Table.
type session struct {
	id        blockmgr.SessionID
	worker    kv.Worker
	namespace kv.NamespaceID
	uid       uint32
	conn      *proto.Conn      // the scheduler's
	engine    *process.Process // the scheduler's; one of procs
	log       *zap.Logger
	cfg       *Config
	count     *sessionCounters
	cache     *cacheCounters
	previous  *previousSessions
	reports   *reports.Reporter // of the scheduler's connection
	lists     *cachedLists      // asks for the engine's cached hashes
	latest    latestGauges
	files     int           // descriptors reserved for its event streams
	done      chan struct{} // closed when the session has ended and its worker rank is free
	answered  chan struct{} // closed after done, when a BYE has its OK

	// openParts sets these.
	pool  *blockmgr.Pool
	sched *link // sends on conn, extents first
	rank  *events.Rank

	// Only the goroutine that reads the connection uses these.
	chain          *chain
	tokens, blocks int // of all open requests
	tokenBuf       []uint32
	// resumed is a pseudo-request that holds the slots that RESUME kept; nil before RESUME.
	resumed *request
	// superseded are requests whose id was opened again while they held grants. They stay
	// until the grants are committed or aborted, so that maxGrants bounds them.
	superseded map[requestName]*request

	ctx         context.Context // ends with the session
	cancel      context.CancelFunc
	lookups     sync.WaitGroup
	lookupSlots chan struct{}

	mu         sync.Mutex
	requests   map[uint64]*request
	grants     int // of all requests, superseded ones included
	workers    map[*workerLink]struct{}
	links      sync.WaitGroup     // workers that joined and still use the pool
	workerLost bool               // a worker is lost; the next CLAIM is refused once
	procs      []*process.Process // every process that connected and may still live
	// enlisted are all processes that ever connected. Their number is bounded.
	enlisted map[blockmgr.Process]struct{}
	ended    bool

	// welcomed says that WELCOME has left. Server.mu guards it.
	welcomed bool
}

// sessionCounters count over all connections and sessions.
type sessionCounters struct {
	accepted, denied, malformed           atomic.Uint64
	frames, refused, panics               atomic.Uint64
	lookups, fits, claims, stores         atomic.Uint64
	commits, resets                       atomic.Uint64
	loads, loadsDropped, workersLost      atomic.Uint64
	prefetched, lowPriority, listsDropped atomic.Uint64
}

// find returns the open request that a frame names. The error is the refusal of the frame. A
// broken request, whose tokens differ from the engine's, is refused too.
func (s *session) find(id uint64, generation uint32) (*request, error) {
	r := s.requests[id]
	switch {
	case r == nil:
		return nil, refusal.New(proto.CodeNotFound, "request %d is not open", id)
	case r.generation != generation:
		return nil, refusal.New(proto.CodeNotFound, "request %d generation %d: generation %d is open", id, generation, r.generation)
	case r.broken != nil:
		return nil, r.broken
	}
	return r, nil
}

// grantHolder returns the request whose grants a frame names: an open request, an earlier
// generation that still holds grants, or the pseudo-request of the slots that RESUME kept.
func (s *session) grantHolder(id uint64, generation uint32) (*request, error) {
	if r := s.resumedAs(id, generation); r != nil {
		return r, nil
	}
	if r := s.superseded[requestName{id, generation}]; r != nil {
		return r, nil
	}
	return s.find(id, generation)
}

// open answers OPEN: it adds a request. It closes an open request with the same id and a lower
// generation, which keeps its grants (see supersede).
func (s *session) open(m *proto.Open) error {
	if m.Request == proto.ResumedRequest {
		return refusal.New(proto.CodeRange, "OPEN req: %d names the slots that RESUME kept, want 0..%d", m.Request, uint64(proto.ResumedRequest-1))
	}
	if s.superseded[requestName{m.Request, m.Generation}] != nil {
		return refusal.New(proto.CodeState, "request %d generation %d: was open before and still holds grants", m.Request, m.Generation)
	}
	if old := s.requests[m.Request]; old != nil {
		if m.Generation <= old.generation {
			return refusal.New(proto.CodeState, "request %d generation %d: generation %d is open", m.Request, m.Generation, old.generation)
		}
		if err := s.supersede(old); err != nil {
			return err
		}
	}
	if len(s.requests) >= s.cfg.MaxRequests {
		return refusal.New(proto.CodeLimit, "request %d: the session has %d open requests, limit %d", m.Request, len(s.requests), s.cfg.MaxRequests)
	}
	r := s.chain.open(m)
	s.mu.Lock()
	s.requests[r.id] = r
	s.mu.Unlock()
	return s.addTokens(r, m.Tokens)
}

// append answers APPEND: it adds tokens to a request. A wrong offset breaks the request: every
// later frame about it gets the same refusal.
func (s *session) append(m *proto.Append) error {
	r, err := s.find(m.Request, m.Generation)
	if err != nil {
		return err
	}
	if int(m.Offset) != r.tokens {
		r.broken = refusal.New(proto.CodeState, "%s offset: %d, but the request has %d tokens", r, m.Offset, r.tokens)
		return r.broken
	}
	return s.addTokens(r, m.Tokens)
}

// addTokens appends packed tokens to r, and begins to read the blocks that they complete from
// disk. Tokens beyond a bound of the request or session break the request, because its tokens
// now differ from the engine's: every later frame about it gets the same refusal.
func (s *session) addTokens(r *request, packed []byte) error {
	tokens, err := proto.ParseTokens(s.tokenBuf[:0], packed)
	if err != nil {
		return err
	}
	s.tokenBuf = tokens
	n := len(tokens)
	completes := (len(r.tail) + n) / s.chain.blockSize // blocks; tail is the incomplete one
	switch {
	case r.tokens+n > proto.MaxTokens:
		r.broken = refusal.New(proto.CodeLimit, "%s tokens: %d, want at most %d", r, r.tokens+n, proto.MaxTokens)
	case s.tokens+n > maxSessionTokens:
		r.broken = refusal.New(proto.CodeLimit, "%s tokens: %d in the session's open requests, want at most %d", r, s.tokens+n, maxSessionTokens)
	case s.blocks+completes > maxSessionBlocks:
		r.broken = refusal.New(proto.CodeLimit, "%s blocks: more than %d in the session's open requests", r, maxSessionBlocks)
	}
	if r.broken != nil {
		return r.broken
	}
	s.chain.add(r, tokens)
	s.tokens += n
	s.blocks += completes
	// With KV groups FIT says which blocks are worth a read.
	if !s.cfg.NoPrefetch && completes > 0 && s.chain.groups == nil {
		s.count.prefetched.Add(uint64(s.pool.Prefetch(r.blocks[len(r.blocks)-completes:])))
	}
	return nil
}

// release answers RELEASE: it drops the pins of a range of a request's blocks. The request
// proto.ResumedRequest stands for the pins that RESUME kept.
func (s *session) release(m *proto.Range) error {
	r := s.resumedAs(m.Request, m.Generation)
	if r == nil {
		var err error
		if r, err = s.find(m.Request, m.Generation); err != nil {
			return err
		}
	}
	if err := s.chain.checkGroup(proto.TypeRelease, m.Group); err != nil {
		return err
	}
	return s.unpin(s.takePins(r, m.Group, uint64(m.First), uint64(m.First)+uint64(m.Count)))
}

// takePins removes the pins of blocks first … end-1 of a KV group from a request and returns their
// slots.
func (s *session) takePins(r *request, group uint32, first, end uint64) []blockmgr.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.dropPinsLocked(group, first, end)
}

// takeAllPins removes the pins of a request and returns their slots.
func (s *session) takeAllPins(r *request) []blockmgr.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.dropAllPinsLocked()
}

// close answers CLOSE: it drops the request's pins and aborts its grants. The frame may name
// an open request, an earlier generation that still holds grants, or the resumed request.
func (s *session) close(m *proto.Close) error {
	if r := s.resumedAs(m.Request, m.Generation); r != nil {
		return errors.Join(s.unpin(s.takeAllPins(r)), s.abortGrants(r))
	}
	if r := s.superseded[requestName{m.Request, m.Generation}]; r != nil {
		return s.abortGrants(r)
	}
	r := s.requests[m.Request]
	if r == nil || r.generation != m.Generation {
		_, err := s.find(m.Request, m.Generation) // says why there is none
		return err
	}
	return errors.Join(s.closeRequest(r), s.abortGrants(r))
}

// supersede closes a request whose id is opened again. Its grants stay until the engine, which
// may still be copying, commits or aborts them.
func (s *session) supersede(r *request) error {
	s.mu.Lock()
	held := len(r.grants)
	s.mu.Unlock()
	if held > 0 {
		s.superseded[r.requestName] = r
	}
	return s.closeRequest(r)
}

// closeRequest removes a request from the open requests and drops its pins. Its grants stay.
func (s *session) closeRequest(r *request) error {
	hits := s.markClosed(r)
	pins := s.takeAllPins(r) // lookups add no pin to a closed request
	s.cache.finish(hits.Hits)
	s.tokens -= r.tokens
	s.blocks -= len(r.blocks)
	r.blocks, r.tail = nil, nil
	return s.unpin(pins)
}

// markClosed marks a request as closed and returns its hits.
func (s *session) markClosed(r *request) requestHits {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.closed = true
	delete(s.requests, r.id)
	return r.hits
}

// abortGrants frees every slot that a request was granted.
func (s *session) abortGrants(r *request) error {
	s.mu.Lock()
	slots := slices.Collect(maps.Keys(r.grants))
	s.mu.Unlock()
	if len(slots) == 0 {
		return nil
	}
	if err := s.pool.Abort(s.id, slots); err != nil {
		return err
	}
	s.removeGrants(r, slots)
	return nil
}

// unpin releases pins of slots in the pool.
func (s *session) unpin(slots []blockmgr.Slot) error {
	if len(slots) == 0 {
		return nil
	}
	return s.pool.Unpin(s.id, slots)
}

// join adds a worker's connection. It refuses the worker when the session has ended or has
// proto.MaxWorkers workers.
func (s *session) join(l *workerLink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return errEnded
	case len(s.workers) >= proto.MaxWorkers:
		return refusal.New(proto.CodeLimit, "session %d has %d workers, limit %d", s.id, len(s.workers), proto.MaxWorkers)
	}
	s.workers[l] = struct{}{}
	s.links.Add(1) // runWorker calls Done
	l.joined = true
	s.workerLost = false // the new worker takes the lost one's place
	return nil
}

// leave removes a worker's connection. lost says that it ended without BYE: the next CLAIM is
// then refused, so that the scheduler does not wait for this worker's part.
func (s *session) leave(l *workerLink, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.workers[l]; !ok {
		return
	}
	delete(s.workers, l)
	if lost && !s.ended {
		s.workerLost = true
		s.count.workersLost.Add(1)
		s.log.Warn("a worker's connection ended without BYE", zap.Int("workers_left", len(s.workers)))
	}
}

// addProcess adds p to the processes of the session, which releases p when it ends. It releases
// processes that have exited, and an earlier reference to p. It returns false, and leaves p to
// the caller, when the session has ended.
func (s *session) addProcess(p *process.Process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	kept := s.procs[:0]
	for _, old := range s.procs {
		if old.Gone() || old == p {
			old.Release()
			continue
		}
		kept = append(kept, old)
	}
	clear(s.procs[len(kept):])
	s.procs = append(kept, p)
	return true
}
