package agent

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// storedBehind publishes a batch that stores one block behind another.
func (p *fakePublisher) storedBehind(parent, hash uint64, tokens []uint32) {
	p.t.Helper()
	payload := engineevent.AppendBatch(nil, &engineevent.Batch{Timestamp: 1, Events: []engineevent.Event{{
		Kind: kvevent.Stored, BlockHashes: []kv.EngineHash{kv.EngineHash(hash)}, Parent: kv.EngineHash(parent), HasParent: true,
		Tokens: tokens, BlockSize: agenttest.BlockSize, Medium: "GPU", Group: engineevent.NoGroup,
	}}})
	if _, err := p.sock.SendMessage("", binary.BigEndian.AppendUint64(nil, p.seq), payload); err != nil {
		p.t.Fatal(err)
	}
	p.seq++
}

// An engine that lives through its agent's restart holds a system prompt and does not
// store it again. Its stream says it as soon as a request is behind it.
func TestHotPrefixIsSaidInTheEnginesFormatAfterARestart(t *testing.T) {
	engine, events := newFakePublisher(t)
	hello := agenttest.Hello(1)
	hello.EventsEndpoint = events
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	cfg := testConfig(t)
	system := agenttest.Prompt(1, 1)
	// PUB drops what nobody has subscribed to yet: the same batch is sent again and again.
	tellOfSystem := func() {
		engine.seq = 0
		engine.stored(77, system)
	}
	a := startAgent(t, cfg)
	c, err := a.DialWith(t, hello)
	if err != nil {
		t.Fatal(err)
	}
	heldByMedium(t, hello.ConsolidatedEndpoint, func(held map[string]map[kv.EngineHash]bool) bool {
		tellOfSystem()
		return len(held["GPU"]) == 1
	})
	c.Close()
	a.stop()

	a = startAgent(t, cfg)
	if c, err = a.DialWith(t, hello); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "the system prompt is left out", func() bool {
		tellOfSystem()
		s := a.Stats()
		return s.Totals.Ranks.Duplicates > 0 && s.Totals.ZMQ.Left == 1
	})
	const requests = 20
	stored := false
	heldByMedium(t, hello.ConsolidatedEndpoint, func(held map[string]map[kv.EngineHash]bool) bool {
		if z := a.Stats().Totals.ZMQ; !stored && z.Subscribers == 1 && z.Reannounced > 0 {
			stored = true
			for i := range requests {
				openBehind(t, c, proto.RequestID{ID: uint64(1 + i)}, system, agenttest.Prompt(10+i, 1))
				engine.storedBehind(77, uint64(100+i), agenttest.Prompt(10+i, 1))
			}
		}
		return len(held["GPU"]) == 1+requests
	})
	// A batch is counted when it has been sent.
	agenttest.Eventually(t, "the blocks are counted as said", func() bool {
		z := a.Stats().Totals.ZMQ
		return z.Left == 0 && z.Said == 1+requests && z.Recovered > 0
	})
}

// openBehind begins a request with two runs of tokens, which the agent has read when it
// returns.
func openBehind(t *testing.T, c *proto.SchedulerClient, r proto.RequestID, first, second []uint32) {
	t.Helper()
	if err := c.Open(r, "", "", "", append(slices.Clone(first), second...)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Lookup(t.Context(), r, 0, 2, 0); err != nil {
		t.Fatal(err)
	}
}
