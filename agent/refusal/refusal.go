package refusal

import (
	"fmt"
)

// Error is what an engine is told: a code of package proto, whether the same request may
// succeed later, and the text.
type Error struct {
	Code      string
	Retryable bool
	Err       error
}

// Error implements error.
func (e *Error) Error() string { return e.Code + ": " + e.Err.Error() }

// Unwrap returns the error without its code.
func (e *Error) Unwrap() error { return e.Err }

// New refuses a request for good.
func New(code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// Retry refuses a request that may succeed later.
func Retry(code, format string, args ...any) error {
	return &Error{Code: code, Retryable: true, Err: fmt.Errorf(format, args...)}
}
