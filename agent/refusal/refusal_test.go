package refusal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// TestRefusalIsFoundBehindOtherErrors: whoever answers the engine gets code, text and whether to
// retry from an error that callers have wrapped, and the cause stays visible.
func TestRefusalIsFoundBehindOtherErrors(t *testing.T) {
	for _, c := range []struct {
		err       error
		retryable bool
		text      string
	}{
		{refusal.New(proto.CodeRange, "slots %d: %w", 7, fs.ErrNotExist), false, proto.CodeRange + ": slots 7: file does not exist"},
		{refusal.Retry(proto.CodeLimit, "slots %d: %w", 8, fs.ErrNotExist), true, proto.CodeLimit + ": slots 8: file does not exist"},
	} {
		if got := c.err.Error(); got != c.text {
			t.Errorf("text %q, want %q", got, c.text)
		}
		var r *refusal.Error
		if !errors.As(fmt.Errorf("session 1: %w", c.err), &r) {
			t.Fatalf("%v is no refusal", c.err)
		}
		if r.Retryable != c.retryable {
			t.Errorf("%v: retryable %t, want %t", c.err, r.Retryable, c.retryable)
		}
		// An ERROR has a field for the code: the text for the engine goes without.
		if got, want := r.Code+": "+r.Err.Error(), c.text; got != want {
			t.Errorf("code and text %q, want %q", got, want)
		}
		if !errors.Is(c.err, fs.ErrNotExist) {
			t.Errorf("%v hides its cause", c.err)
		}
	}
}
