package engine

import (
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// What the workers of a rank copied reaches the load reports of the rank.
func TestCopiesOfWorkersAreSummed(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 7)
	agenttest.NoError(t, a.Worker(t, c, 7).Report(proto.Stats{CopiedBytes: 1 << 20, CopyMicros: 50}))
	want := reports.Copies{Bytes: 1 << 20, Micros: 50, Workers: 1}
	agenttest.Eventually(t, "the worker's copies are known", func() bool { return a.reports.Copies(kv.Worker{ID: 7}) == want })
}
