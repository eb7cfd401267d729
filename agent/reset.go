package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// resetPatience bounds how long a RESET waits for what is being sealed, written
// or read.
const resetPatience = 2 * time.Second

// reset answers RESET: it empties the namespace's pool, unless another session or
// one of an earlier agent has it open too.
func (s *session) reset(corr uint32) error {
	if err := s.holdsNothing(); err != nil {
		return err
	}
	alone, err := s.pool.ResetAlone(s.id)
	if errors.Is(err, blockmgr.ErrActive) {
		alone, err = s.resetQuiet()
	}
	switch {
	case errors.Is(err, blockmgr.ErrActive):
		return &refusal.Error{Code: proto.CodeState, Retryable: true, Err: err}
	case err != nil:
		return err
	case alone:
		s.count.resets.Add(1)
		s.log.Info("the engine had its namespace emptied", zap.Stringer("namespace", s.namespace))
	}
	return s.sched.conn.Send(proto.TypeOK, corr, nil, nil)
}

// resetQuiet waits for what the agent itself does with blocks first.
func (s *session) resetQuiet() (alone bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, resetPatience)
	defer cancel()
	_ = s.pool.Quiesce(ctx) // ResetAlone says what is in use
	return s.pool.ResetAlone(s.id)
}

// holdsNothing refuses when the session has a request, a pin or a grant.
func (s *session) holdsNothing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pins := 0
	if s.held != nil {
		pins = len(s.held.pins)
	}
	if n := len(s.requests); n > 0 || s.grants > 0 || pins > 0 {
		return refusal.New(proto.CodeState, "RESET: the session has %d open requests, %d grants and %d pins of RESUMED, want none of each", n, s.grants, pins)
	}
	return nil
}
