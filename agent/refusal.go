package agent

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// refusal is an error that a client is told: the body of an ERROR frame.
type refusal struct {
	code      string
	retryable bool
	err       error
}

// errEnded: the session has ended.
var errEnded = errors.New("the session has ended")

func (r *refusal) Error() string { return r.code + ": " + r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refuse(code, format string, args ...any) error {
	return &refusal{code: code, err: fmt.Errorf(format, args...)}
}

// refusalOf says with which code an error is told to a client.
func refusalOf(err error) *refusal {
	var r *refusal
	switch {
	case errors.As(err, &r):
		return r
	case proto.IsMalformed(err):
		return &refusal{code: proto.CodeMalformed, err: err}
	case errors.Is(err, blockmgr.ErrNamespace):
		return &refusal{code: proto.CodeNamespace, err: err}
	case errors.Is(err, blockmgr.ErrBadSlot):
		return &refusal{code: proto.CodeState, err: err}
	case errors.Is(err, errEnded), errors.Is(err, blockmgr.ErrNoSession), errors.Is(err, blockmgr.ErrRetired):
		return &refusal{code: proto.CodeNotFound, err: err}
	case errors.Is(err, blockmgr.ErrSessions):
		return &refusal{code: proto.CodeLimit, retryable: true, err: err}
	case errors.Is(err, blockmgr.ErrClosed):
		return &refusal{code: proto.CodeInternal, retryable: true, err: err}
	}
	return &refusal{code: proto.CodeInternal, err: err}
}
