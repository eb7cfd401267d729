package engine

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// body is what makes *M a message that can be decoded into.
type body[M any] interface {
	*M
	proto.Message
}

// decoded reads a frame's body and hands it to do. It returns the request that
// the frame is about, as far as it could be read.
func decoded[M any, P body[M]](f proto.Frame, request func(P) uint64, do func(P) error) (uint64, error) {
	m := P(new(M))
	if err := decodeFrame(f, m); err != nil {
		return request(m), err
	}
	return request(m), do(m)
}

// decodeFrame reads the body of a frame whose type its sender may send, and
// checks that it has a correlation exactly if it wants an answer.
func decodeFrame(f proto.Frame, m proto.Message) error {
	err := proto.Decode(f.Type, f.Body, m)
	switch wants := f.Type.WantsAnswer(); {
	case proto.IsMalformed(err):
		return err
	case err != nil:
		return &refusal.Error{Code: proto.CodeRange, Err: err}
	case wants && f.Corr == 0:
		return refusal.New(proto.CodeRange, "%s correlation: 0, want another because it has an answer", f.Type)
	case !wants && f.Corr != 0:
		return refusal.New(proto.CodeRange, "%s correlation: %d, want 0 because it has no answer", f.Type, f.Corr)
	}
	return nil
}

// bye is a BYE.
type bye struct {
	corr   uint32
	reason string
}

func decodeBye(f proto.Frame) (*bye, error) {
	var m proto.Bye
	if err := decodeFrame(f, &m); err != nil {
		return nil, err
	}
	return &bye{f.Corr, m.Reason}, nil
}

// text is the engine's reason, for people; empty without a BYE.
func (f *bye) text() string {
	if f == nil {
		return ""
	}
	return f.reason
}

// handle does what a scheduler's frame asks for and answers it. An error is to
// be told to the scheduler, as one about the request returned with it.
func (s *session) handle(f proto.Frame) (request uint64, err error) {
	switch f.Type {
	case proto.TypeOpen:
		return decoded(f, func(m *proto.Open) uint64 { return m.Request }, s.open)
	case proto.TypeAppend:
		return decoded(f, func(m *proto.Append) uint64 { return m.Request }, s.append)
	case proto.TypeRelease:
		return decoded(f, func(m *proto.Range) uint64 { return m.Request }, s.release)
	case proto.TypeAbort:
		return decoded(f, func(m *proto.SlotList) uint64 { return m.Request }, s.abort)
	case proto.TypeClose:
		return decoded(f, func(m *proto.Close) uint64 { return m.Request }, s.close)
	case proto.TypeStats:
		return decoded(f, noRequest[*proto.Stats], s.takeStats)
	case proto.TypeCached:
		return decoded(f, noRequest[*proto.Cached], s.lists.take)
	case proto.TypeLookup, proto.TypeClaim, proto.TypeStore, proto.TypeCommit, proto.TypeResume, proto.TypeReset:
		return s.handleCall(f)
	}
	return 0, unexpected(f.Type, proto.RoleScheduler)
}

// handleCall is handle for the frames that have an answer.
func (s *session) handleCall(f proto.Frame) (request uint64, err error) {
	switch f.Type {
	case proto.TypeLookup:
		return decoded(f, func(m *proto.Lookup) uint64 { return m.Request }, func(m *proto.Lookup) error { return s.lookup(f.Corr, m) })
	case proto.TypeClaim:
		return decoded(f, func(m *proto.Claim) uint64 { return m.Request }, func(m *proto.Claim) error { return s.claim(f.Corr, m) })
	case proto.TypeStore:
		return decoded(f, func(m *proto.Store) uint64 { return m.Request }, func(m *proto.Store) error { return s.store(f.Corr, m) })
	case proto.TypeCommit:
		return decoded(f, func(m *proto.SlotList) uint64 { return m.Request }, func(m *proto.SlotList) error { return s.commit(f.Corr, m) })
	case proto.TypeResume:
		return decoded(f, noRequest[*proto.Resume], func(m *proto.Resume) error { return s.resume(f.Corr, m) })
	default:
		return decoded(f, noRequest[*proto.Reset], func(*proto.Reset) error { return s.reset(f.Corr) })
	}
}

// noRequest is for frames that are about no request.
func noRequest[M any](M) uint64 { return 0 }

// unexpected refuses a frame of a type that a client of this role never sends.
func unexpected(t proto.Type, r proto.Role) error {
	if _, known := proto.NewMessage(t); known {
		return refusal.New(proto.CodeState, "%s does not come from a %s after HELLO", t, r)
	}
	return refusal.New(proto.CodeUnsupported, "%s is not known", t)
}

// errEnded: the session has ended.
var errEnded = errors.New("the session has ended")

// refusalOf says with which code an error is told to a client.
func refusalOf(err error) *refusal.Error {
	var r *refusal.Error
	switch {
	case errors.As(err, &r):
		return r
	case proto.IsMalformed(err):
		return &refusal.Error{Code: proto.CodeMalformed, Err: err}
	case errors.Is(err, blockmgr.ErrNamespace):
		return &refusal.Error{Code: proto.CodeNamespace, Err: err}
	case errors.Is(err, blockmgr.ErrBadSlot):
		return &refusal.Error{Code: proto.CodeState, Err: err}
	case errors.Is(err, errEnded), errors.Is(err, blockmgr.ErrNoSession), errors.Is(err, blockmgr.ErrRetired):
		return &refusal.Error{Code: proto.CodeNotFound, Err: err}
	case errors.Is(err, blockmgr.ErrSessions):
		return &refusal.Error{Code: proto.CodeLimit, Retryable: true, Err: err}
	case errors.Is(err, blockmgr.ErrClosed):
		return &refusal.Error{Code: proto.CodeInternal, Retryable: true, Err: err}
	}
	return &refusal.Error{Code: proto.CodeInternal, Err: err}
}

// guard calls do for a session. A panic of do ends this session and not the agent: the
// panic is counted, logged with its stack and returned as an error, and the scheduler's
// connection closes. The session then ends as one without BYE does, so that its granted
// slots stay in quarantine until its processes have exited.
func (s *session) guard(do func() error) error {
	return s.count.guard(s.log, s.conn, do)
}

// guard calls do, whose panic is counted, logged with its stack and returned as an error.
// It also closes conn.
func (c *sessionCounters) guard(log *zap.Logger, conn interface{ Close() error }, do func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err = fmt.Errorf("panic: %v", v)
		c.panics.Add(1)
		log.Error("a session panicked: its connection is closed", zap.Error(err), zap.ByteString("stack", debug.Stack()))
		conn.Close() // whoever reads it sees the end
	}()
	return do()
}

// guarded is guard for what returns no error.
func (s *session) guarded(do func()) {
	_ = s.guard(func() error { do(); return nil }) // the error is in the log
}
