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

// body is a message that a frame can be decoded into.
type body[M any] interface {
	*M
	proto.Message
}

// decodeThen decodes a frame's body and calls do with it. It returns the request that the frame
// names, also with an error, if the body could be read that far.
func decodeThen[M any, P body[M]](f proto.Frame, request func(P) uint64, do func(P) error) (uint64, error) {
	m := P(new(M))
	if err := decodeFrame(f, m); err != nil {
		return request(m), err
	}
	return request(m), do(m)
}

// decodeFrame decodes the body of a frame and checks its correlation number, which a frame
// has if and only if its type has an answer. The error is one of proto.IsMalformed, which
// ends the connection, or a refusal.Error, which the engine is told.
func decodeFrame(f proto.Frame, m proto.Message) error {
	err := proto.Decode(f.Type, f.Body, m)
	switch wants := f.Type.WantsAnswer(); {
	case proto.IsMalformed(err):
		return err
	case err != nil:
		return &refusal.Error{Code: proto.CodeRange, Err: err}
	case wants && f.Corr == 0:
		return refusal.New(proto.CodeRange, "%s correlation: 0, want a number because it has an answer", f.Type)
	case !wants && f.Corr != 0:
		return refusal.New(proto.CodeRange, "%s correlation: %d, want 0 because it has no answer", f.Type, f.Corr)
	}
	return nil
}

// bye is a BYE that awaits its OK.
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

// text returns the engine's reason for the log; empty without a BYE.
func (f *bye) text() string {
	if f == nil {
		return ""
	}
	return f.reason
}

// handle executes a scheduler's frame and answers it. An error goes to the scheduler in an
// ERROR about the returned request.
func (s *session) handle(f proto.Frame) (request uint64, err error) {
	switch f.Type {
	case proto.TypeOpen:
		return decodeThen(f, func(m *proto.Open) uint64 { return m.Request }, s.open)
	case proto.TypeAppend:
		return decodeThen(f, func(m *proto.Append) uint64 { return m.Request }, s.append)
	case proto.TypeRelease:
		return decodeThen(f, func(m *proto.Range) uint64 { return m.Request }, s.release)
	case proto.TypeAbort:
		return decodeThen(f, func(m *proto.SlotList) uint64 { return m.Request }, s.abort)
	case proto.TypeClose:
		return decodeThen(f, func(m *proto.Close) uint64 { return m.Request }, s.close)
	case proto.TypeStats:
		return decodeThen(f, noRequest[*proto.Stats], s.takeStats)
	case proto.TypeCached:
		return decodeThen(f, noRequest[*proto.Cached], s.lists.take)
	case proto.TypeLookup, proto.TypeClaim, proto.TypeStore, proto.TypeCommit, proto.TypeResume, proto.TypeReset, proto.TypeFit:
		return s.handleCall(f)
	}
	return 0, unexpected(f.Type, proto.RoleScheduler)
}

// handleCall handles a scheduler's frame that has an answer, sent with the frame's correlation
// number f.Corr. The caller has checked that the type is one of these. request is the engine's
// request that the frame names, 0 without one; an error is logged and refused with it.
func (s *session) handleCall(f proto.Frame) (request uint64, err error) {
	switch f.Type {
	case proto.TypeLookup:
		return decodeThen(f, func(m *proto.Lookup) uint64 { return m.Request }, func(m *proto.Lookup) error { return s.lookup(f.Corr, m) })
	case proto.TypeClaim:
		return decodeThen(f, func(m *proto.Claim) uint64 { return m.Request }, func(m *proto.Claim) error { return s.claim(f.Corr, m) })
	case proto.TypeStore:
		return decodeThen(f, func(m *proto.Store) uint64 { return m.Request }, func(m *proto.Store) error { return s.store(f.Corr, m) })
	case proto.TypeCommit:
		return decodeThen(f, func(m *proto.SlotList) uint64 { return m.Request }, func(m *proto.SlotList) error { return s.commit(f.Corr, m) })
	case proto.TypeResume:
		return decodeThen(f, noRequest[*proto.Resume], func(m *proto.Resume) error { return s.resume(f.Corr, m) })
	case proto.TypeFit:
		return decodeThen(f, func(m *proto.Fit) uint64 { return m.Request }, func(m *proto.Fit) error { return s.fit(f.Corr, m) })
	default: // TypeReset, the last of the caller's list
		return decodeThen(f, noRequest[*proto.Reset], func(*proto.Reset) error { return s.reset(f.Corr) })
	}
}

// noRequest returns the request function of frames that name no request.
func noRequest[M any](M) uint64 { return 0 }

// unexpected refuses a type that clients of this role never send.
func unexpected(t proto.Type, r proto.Role) error {
	if _, known := proto.NewMessage(t); known {
		return refusal.New(proto.CodeState, "%s does not come from a %s after HELLO", t, r)
	}
	return refusal.New(proto.CodeUnsupported, "%s is not known", t)
}

// errEnded says that the session has ended.
var errEnded = errors.New("the session has ended")

// refusalOf translates an error to the refusal that the engine gets in an ERROR. An error
// without a code of its own becomes proto.CodeInternal.
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

// guard calls do. A panic of do ends this session and not the agent: it is counted, logged
// with its stack and returned as an error, and the scheduler's connection closes. The session
// then ends as without BYE: granted slots stay in quarantine until its processes have exited.
func (s *session) guard(do func() error) error {
	return s.count.guard(s.log, s.conn, do)
}

// guard calls do. A panic of do is counted, logged with its stack and returned as an error,
// and conn closes.
func (c *sessionCounters) guard(log *zap.Logger, conn interface{ Close() error }, do func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		err = fmt.Errorf("panic: %v", v)
		c.panics.Add(1)
		log.Error("a session panicked: its connection is closed", zap.Error(err), zap.ByteString("stack", debug.Stack()))
		conn.Close() // the goroutine that reads conn sees the end
	}()
	return do()
}

// guarded is guard for functions without an error.
func (s *session) guarded(do func()) {
	_ = s.guard(func() error { do(); return nil }) // guard has logged the error
}
