package api

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines that are left behind. One of the NATS client's is, when
// an object is stored faster than that goroutine begins.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(
		"github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}
