package engine

import (
	"os"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// A pool may give an extent up at any time, also between its being listed and its
// being announced. The connection goes on.
func TestExtentThatGoesBeforeItIsAnnouncedIsLeftOut(t *testing.T) {
	a := startServer(t, nil)
	a.Scheduler(t, 1)
	closed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	c := a.Raw(t)
	l := newLink(c, a.pools.Manager().Pools()[0])
	if err := l.announce(blockmgr.ExtentInfo{ID: 1 << 31, File: closed}); err != nil || len(l.sent) != 0 {
		t.Errorf("error %v, announced %v", err, l.sent)
	}
	listed := l.pool.Extents()[0]
	listed.File = closed
	if err := l.announce(listed); err == nil {
		t.Error("an extent that is there cannot be announced, and nobody is told")
	}
	h := agenttest.Hello(2)
	h.Major, h.Role = proto.VersionMajor, string(proto.RoleScheduler)
	agenttest.Send(t, c, proto.TypeHello, 1, &h)
	if f := agenttest.Receive(t, c); f.Type != proto.TypeWelcome {
		t.Errorf("HELLO was answered with %s", f.Type)
	}
}
