package agent

import (
	"errors"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

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
