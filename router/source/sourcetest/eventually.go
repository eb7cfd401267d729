package sourcetest

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// Eventually waits until the condition holds, and fails the test after 30 s. what names the
// condition in the failure.
func Eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	waittest.Until(t, what, condition)
}
