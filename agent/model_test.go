package agent_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// client is a scheduler that asks for random things, sensible or not, and keeps
// what it was granted.
type client struct {
	t       *rapid.T
	c       *proto.SchedulerClient
	granted []proto.Slot
}

func (c *client) request() proto.RequestID {
	return proto.RequestID{ID: rapid.Uint64Range(1, 3).Draw(c.t, "id"), Generation: rapid.Uint32Range(0, 2).Draw(c.t, "generation")}
}

func (c *client) run() (first, count int) {
	return rapid.IntRange(0, 6).Draw(c.t, "first"), rapid.IntRange(1, 6).Draw(c.t, "count")
}

// check fails on anything but a refusal: whatever a client asks for, it keeps
// its connection.
func (c *client) check(err error) {
	var refused *proto.RefusedError
	if err != nil && !errors.As(err, &refused) {
		c.t.Fatalf("not a refusal: %v", err)
	}
}

// slots is some of the slots that were granted, or one that never was.
func (c *client) slots() []proto.Slot {
	if len(c.granted) == 0 || rapid.IntRange(0, 9).Draw(c.t, "foreign") == 0 {
		return []proto.Slot{{Index: 1, Generation: 99999}}
	}
	i := rapid.IntRange(0, len(c.granted)-1).Draw(c.t, "granted")
	return c.granted[i:min(i+2, len(c.granted))]
}

func (c *client) step() {
	ctx := c.t.Context()
	r := c.request()
	first, count := c.run()
	switch rapid.IntRange(0, 9).Draw(c.t, "operation") {
	case 0:
		c.check(c.c.Open(r, "", "", "", agenttest.Prompt(rapid.IntRange(0, 2).Draw(c.t, "prompt"), count)))
	case 1:
		c.check(c.c.Append(r, first*agenttest.BlockSize, agenttest.Prompt(0, count)))
	case 2:
		_, err := c.c.Lookup(ctx, r, first, count, 0)
		c.check(err)
	case 3:
		_, err := c.c.Lookup(ctx, r, first, count, 5e6)
		c.check(err)
	case 4:
		_, err := c.c.Claim(ctx, r, 1, first, make([]uint32, count))
		c.check(err)
	case 5:
		got, err := c.c.Store(ctx, r, first, count)
		c.check(err)
		for _, g := range got.Grants {
			c.granted = append(c.granted, g.Slot)
		}
	case 6:
		c.check(c.c.Commit(ctx, r, c.slots()))
	case 7:
		c.check(c.c.Abort(r, c.slots()))
	case 8:
		c.check(c.c.Release(r, first, count))
	case 9: // of a session that is not a previous one: nothing is kept
		kept, err := c.c.Resume(ctx, c.c.Welcome(), proto.Held{Granted: c.slots(), Pinned: c.slots()})
		c.check(err)
		if len(kept.Granted)+len(kept.Pinned) != 0 {
			c.t.Fatalf("kept %+v", kept)
		}
	}
	if rapid.IntRange(0, 5).Draw(c.t, "close") == 0 {
		c.check(c.c.CloseRequest(c.request()))
	}
}

func TestWhateverASessionAsksForNothingIsLeftBehind(t *testing.T) {
	a := startAgent(t, testConfig(t))
	rapid.Check(t, func(rt *rapid.T) {
		s, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: agenttest.Hello(1)})
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		h := agenttest.Hello(1)
		h.Session = s.Welcome().Session
		w, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h}, proto.Register{DeviceBlocks: 1, BlockBytes: 1})
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Close()
		c := &client{t: rt, c: s}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			c.step()
		}
		if err := s.Bye(t.Context(), "test"); err != nil {
			rt.Fatal(err)
		}
		st := a.Stats()
		if p := st.Pools[0]; p.Pins != 0 || p.Host.Granted != 0 || p.Host.Quarantined != 0 || p.Stats.Sessions != 0 || st.Sessions != 0 {
			rt.Fatalf("left behind: %+v", p)
		}
	})
}
