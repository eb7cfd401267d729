package engine

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/blockyard-ai/blockyard/agent/descriptors"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/agent/socket"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// helloTimeout bounds the time from connect to HELLO, and from a worker's HELLO to
	// REGISTER.
	helloTimeout = 5 * time.Second
	// replaceTimeout bounds the wait of a new session for the end of an earlier session of the
	// same worker rank.
	replaceTimeout = 500 * time.Millisecond
	// maxAwaitingExit bounds the ended sessions of one process whose granted slots wait for
	// its exit. Such a process gets no new session.
	maxAwaitingExit = 64
	// maxSampled bounds the log lines of one text in sampleTime that clients can cause by
	// connecting again and again.
	maxSampled = 30
	sampleTime = time.Minute
)

// Config bounds what engines may ask for.
type Config struct {
	// AllowUIDs are the users whose processes may connect.
	AllowUIDs []uint32
	// MaxRequests bounds the open requests of a session, MaxPins its pinned blocks.
	MaxRequests, MaxPins int
	// MinPriority is the least retention priority of blocks that are stored. A block below it
	// also keeps the later blocks of its request out.
	MinPriority uint32
	// NoPrefetch leaves blocks on disk until a LOOKUP asks for them.
	NoPrefetch bool
	// SendTimeout is the time after which an unread frame closes a client's connection,
	// default 2 s.
	SendTimeout time.Duration
	// HitRateRequests is the number of requests that hit rates span, 0 for
	// DefaultHitRateRequests.
	HitRateRequests int
}

// Server accepts engines' connections and holds their sessions. mu is a leaf: no lock is taken
// under it.
type Server struct {
	cfg      Config
	pools    *pools.Set
	hub      *events.Hub
	files    *descriptors.Budget
	log      *zap.Logger
	tokens   func() tokens.Sink // the sink of blocks' tokens, nil for none
	sampled  *zap.Logger        // log with at most maxSampled lines of one text
	listener *socket.Listener
	nonce    uint64
	allowed  atomic.Pointer[[]uint32] // users whose processes may connect

	sessions  sessionCounters
	processes *process.Table
	previous  *previousSessions
	cache     *cacheCounters
	reports   *reports.Table

	stopping chan struct{}
	wg       sync.WaitGroup // connections, and waits for processes

	mu     sync.Mutex
	closed bool
	// drainEnd is the time at which a stopping agent closes its connections; zero before. No
	// session begins once it is set.
	drainEnd time.Time
	conns    map[*proto.Conn]struct{}
	byID     map[blockmgr.SessionID]*session
	// byWorker has the session of each worker rank.
	byWorker map[kv.Worker]*session
	// awaitingExit counts the ended sessions whose granted slots wait for processes to exit,
	// by the scheduler's process.
	awaitingExit map[process.Key]int
}

// New makes a server for the connections of l. It begins to watch the processes of the sessions
// that an earlier agent left behind. Run serves. Close must be called.
func New(cfg Config, p *pools.Set, h *events.Hub, files *descriptors.Budget, l *socket.Listener, log *zap.Logger) *Server {
	s := &Server{
		cfg: cfg, pools: p, hub: h, files: files, tokens: h.TokenSink, listener: l, log: log, nonce: kv.RandomID(),
		processes:    process.NewTable(),
		cache:        newCacheCounters(cfg.HitRateRequests),
		reports:      reports.New(),
		stopping:     make(chan struct{}),
		conns:        make(map[*proto.Conn]struct{}),
		byID:         make(map[blockmgr.SessionID]*session),
		byWorker:     make(map[kv.Worker]*session),
		awaitingExit: make(map[process.Key]int),
	}
	s.allowed.Store(&cfg.AllowUIDs)
	s.sampled = log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, sampleTime, maxSampled, 0)
	}))
	s.previous = newPreviousSessions(p.Manager(), s.processes, s.nonce, s.stopping, log)
	s.previous.watch()
	return s
}

// Run accepts connections until ctx ends or Close is called.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.listener.Close() })
	defer stop()
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			// most likely no file descriptor is free: open connections go on
			s.log.Error("connection cannot be accepted", zap.Error(err))
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return nil
			}
		}
		s.accept(proto.NewConn(c, s.cfg.SendTimeout))
	}
}

// accept serves a connection in the background. It refuses the connection when the server is
// closed, or when the file descriptors do not suffice for another one.
func (s *Server) accept(c *proto.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit := s.files.Connections(); s.closed || len(s.conns) >= limit {
		s.sessions.denied.Add(1)
		if !s.closed {
			s.sampled.Warn("connection refused: too many", zap.Int("connections", len(s.conns)), zap.Int("files_limit", s.files.Limit()))
			// under the lock: the send does not wait, because the socket's buffer is empty
			_ = sendError(c, 0, 0, refusalOf(refusal.Retry(proto.CodeLimit, "the agent has %d connections, the limit with %d file descriptors (RLIMIT_NOFILE)", limit, s.files.Limit())))
		}
		c.Close()
		return
	}
	s.sessions.accepted.Add(1)
	s.conns[c] = struct{}{}
	s.wg.Go(func() {
		_ = s.sessions.guard(s.log, c, func() error { s.serve(c); return nil }) // guard logs a panic
		c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
}

// Close closes every connection and waits until the sessions have ended. Further calls only
// wait.
func (s *Server) Close() {
	s.listener.Close()
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stopping)
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	// Sessions that end now must leave their ranks' checkpoints for the next agent.
	s.hub.KeepCheckpoints()
	s.wg.Wait()
	s.previous.wg.Wait()
}

// serve serves one connection until it ends: it checks the user, waits for HELLO and goes on
// as HELLO's role says.
func (s *Server) serve(c *proto.Conn) {
	peer, err := c.Peer()
	if err != nil {
		s.log.Warn("connection without credentials", zap.Error(err))
		return
	}
	if !slices.Contains(*s.allowed.Load(), peer.UID) {
		s.sessions.denied.Add(1)
		s.sampled.Warn("connection denied", zap.Uint32("uid", peer.UID), zap.Int32("pid", peer.PID))
		_ = sendError(c, 0, 0, refusalOf(refusal.New(proto.CodeDenied, "user %d may not connect to this agent", peer.UID)))
		return
	}
	p, err := s.processes.Watch(c.Socket(), peer.PID)
	if err != nil {
		s.sampled.Warn("the engine's process cannot be watched: slots it leaves behind stay in quarantine", zap.Error(err))
	}
	hello, corr, err := s.receiveHello(c)
	if err == nil {
		if hello.Role == string(proto.RoleScheduler) {
			err = s.serveScheduler(c, peer, p, hello, corr)
		} else {
			err = s.serveWorker(c, peer, p, hello, corr)
		}
	} else {
		p.Release()
	}
	s.logEnd(peer, hello, abnormalEnd(err))
}

// logEnd logs why a connection ended, unless the client or this agent closed it. Workers that
// wait for their scheduler retry every few milliseconds; set the log level to debug to see
// them. Other lines are sampled; every refusal is counted.
func (s *Server) logEnd(peer proto.Peer, hello *proto.Hello, err error) {
	var r *refusal.Error
	switch {
	case err == nil:
	case hello != nil && hello.Role == string(proto.RoleWorker) && errors.As(err, &r) && r.Retryable:
		s.log.Debug("worker retries", zap.Int32("pid", peer.PID), zap.Error(err))
	default:
		s.sampled.Info("connection ended", zap.Int32("pid", peer.PID), zap.Error(err))
	}
}

// receiveHello reads the first frame, which must be HELLO, and returns it with its correlation
// number. A frame that is refused is answered with the error. After an error the caller closes
// the connection.
func (s *Server) receiveHello(c *proto.Conn) (hello *proto.Hello, corr uint32, err error) {
	_ = c.SetReceiveDeadline(time.Now().Add(helloTimeout)) // fails only on a closed socket
	f, err := s.receive(c)
	if err != nil {
		return nil, 0, err
	}
	_ = c.SetReceiveDeadline(time.Time{})
	var h proto.Hello
	switch {
	case f.Type != proto.TypeHello:
		err = refusal.New(proto.CodeState, "%s came first: want %s", f.Type, proto.TypeHello)
	default:
		err = decodeFrame(f, &h)
	}
	if f.Type == proto.TypeHello && !proto.IsMalformed(err) && h.Major != proto.VersionMajor {
		// The fields of another major version may mean something else. So this error comes
		// before an error about their values.
		err = refusal.New(proto.CodeUnsupported, "HELLO major: %d, want %d", h.Major, proto.VersionMajor)
	}
	if err != nil {
		s.sessions.refused.Add(1)
		_ = sendError(c, f.Corr, 0, refusalOf(err))
		return nil, 0, err
	}
	return &h, f.Corr, nil
}

// receive reads one frame. It answers a malformed message with ERROR and then returns the
// error, which ends the connection.
func (s *Server) receive(c *proto.Conn) (proto.Frame, error) {
	f, err := c.Receive()
	if err != nil {
		if proto.IsMalformed(err) {
			s.sessions.malformed.Add(1)
			_ = sendError(c, 0, 0, refusalOf(err))
		}
		return proto.Frame{}, err
	}
	s.sessions.frames.Add(1)
	if f.File != nil {
		f.File.Close()
		err := refusal.New(proto.CodeState, "%s came with a file descriptor: a client sends none", f.Type)
		_ = sendError(c, f.Corr, 0, refusalOf(err))
		return proto.Frame{}, err
	}
	return f, nil
}

// refuse answers a frame about a request (0: about none) with the refusal err. It returns an
// error when the connection must end: the frame was malformed, or the client does not read.
func (s *Server) refuse(c *proto.Conn, f proto.Frame, request uint64, err error) error {
	s.sessions.refused.Add(1)
	r := refusalOf(err)
	if r.Code == proto.CodeMalformed {
		s.sessions.malformed.Add(1)
	}
	if sendErr := sendError(c, f.Corr, request, r); sendErr != nil {
		return sendErr
	}
	if r.Code == proto.CodeMalformed {
		return err
	}
	return nil
}

// isStopping reports whether Close was called.
func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// abnormalEnd returns err, or nil when err says that the client or this agent closed the
// connection.
func abnormalEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Allow replaces Config.AllowUIDs, the users whose processes may connect, and sets the modes of the
// socket and of its directory as socket.Listen does. Open connections stay. After an error nothing has
// changed. The error says which user could not reach the socket. Only one goroutine may call it at a time.
func (s *Server) Allow(uids []uint32, others bool) error {
	if err := s.listener.Open(uids, others, s.log); err != nil {
		return err
	}
	s.allowed.Store(&uids)
	return nil
}
