package sourcetest

import (
	"testing"
	"time"
)

// Eventually waits until the condition holds, and fails the test after 20 s. what names the
// condition in the failure.
func Eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("after 20 s: not %s", what)
		case <-pause.C:
		}
	}
}
