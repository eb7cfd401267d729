package refusal

import (
	"fmt"
)

// Error is the refusal of an engine's request: a code of package proto, whether the same
// request may succeed later, and the text.
type Error struct {
	Code      string
	Retryable bool
	Err       error
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Err.Error() }

// Unwrap returns the error without its code.
func (e *Error) Unwrap() error { return e.Err }

// New returns a refusal that stays: the same request fails again.
func New(code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Retry returns a refusal of a request that may succeed later.
func Retry(code, format string, args ...any) error {
	return &Error{Code: code, Retryable: true, Err: fmt.Errorf(format, args...)}
}
