package agent_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/readahead"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// onDisk stores the first n blocks of the prompt of seed and empties the host tier: the blocks are
// on disk alone.
func (a *testAgent) onDisk(t *testing.T, c *proto.SchedulerClient, seed, n int) {
	t.Helper()
	agenttest.StorePrompt(t, c, proto.RequestID{ID: uint64(seed)}, seed, n)
	agenttest.Eventually(t, "the blocks are on disk", func() bool {
		s := a.Stats()
		return s.Quiet && s.Pools[0].BytesWritten > 0
	})
	if status, body := post(t, a, "/v1/reset", `{"tier":"host"}`); status != http.StatusOK {
		t.Fatalf("reset: status %d, %s", status, body)
	}
}

// poolPublisher returns the publisher id of the agent's only pool.
func (a *testAgent) poolPublisher(t *testing.T) string {
	t.Helper()
	for _, s := range a.Stats().Streams {
		if strings.HasPrefix(s.Owner, "pool") {
			return s.PublisherID
		}
	}
	t.Fatal("no pool is published")
	return ""
}

// hint posts a read-ahead hint and returns the status of the answer.
func (a *testAgent) hint(t *testing.T, publisher string, body []byte) int {
	t.Helper()
	resp, err := http.Post(fmt.Sprintf("http://%s/v1/events/read-ahead?publisher=%s", a.AdminAddr(), publisher), "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func encodedHint(seed, n int, salt string) []byte {
	return kvevent.AppendReadAhead(nil, &kvevent.ReadAhead{Tokens: agenttest.Prompt(seed, n), Salt: salt})
}

func hintStats(a *testAgent) readahead.Stats { return a.Stats().Outputs.ReadAhead }

// TestAHintReadsBlocksBeforeTheLookup: a router's hint brings blocks that are on disk alone into host
// memory. The LOOKUP that follows finds them there and reads nothing.
func TestAHintReadsBlocksBeforeTheLookup(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	const blocks = 6
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	a.onDisk(t, c, 1, blocks)
	if status := a.hint(t, a.poolPublisher(t), encodedHint(1, blocks, "")); status != http.StatusAccepted {
		t.Fatalf("status %d, want 202", status)
	}
	agenttest.Eventually(t, "the hint's reads have ended", func() bool { return hintStats(a).Taken == 1 && a.Stats().Quiet })
	if got := hintStats(a); got.Blocks != blocks || got.Idle != 0 {
		t.Errorf("hints %+v, want %d reads", got, blocks)
	}
	a.WantFound(t, c, 1, blocks)
	s := a.Stats()
	if p := &s.Pools[0]; p.Promotions != blocks || p.PromotionsShared != 0 || s.Engines.Prefetched != 0 {
		t.Errorf("%d reads, %d shared, %d by OPEN: want the hint's %d reads alone", p.Promotions, p.PromotionsShared, s.Engines.Prefetched, blocks)
	}
}

// TestWrongHintsCostACounter: hints of prompts that the pool does not have, of another salt, of
// nothing readable and for nobody read no block.
func TestWrongHintsCostACounter(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	a.onDisk(t, c, 1, 3)
	publisher := a.poolPublisher(t)
	for _, body := range [][]byte{encodedHint(2, 3, ""), encodedHint(1, 3, "other"), []byte("not a hint"), encodedHint(1, 0, "")} {
		if status := a.hint(t, publisher, body); status != http.StatusAccepted {
			t.Errorf("status %d, want 202", status)
		}
	}
	if status := a.hint(t, "1", encodedHint(1, 3, "")); status != http.StatusNotFound {
		t.Errorf("unknown publisher: status %d, want 404", status)
	}
	if status := a.hint(t, publisher, make([]byte, kvevent.MaxReadAheadBytes+1)); status != http.StatusBadRequest {
		t.Errorf("a body beyond the limit: status %d, want 400", status)
	}
	agenttest.Eventually(t, "the hints are looked at", func() bool { h := hintStats(a); return h.Taken+h.Bad == 4 })
	if got, want := hintStats(a), (readahead.Stats{Taken: 2, Idle: 2, Bad: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := a.Stats().Pools[0].Promotions; n != 0 {
		t.Errorf("%d blocks were read", n)
	}
}

// TestAFloodOfHintsReadsEachBlockOnce: hints for the same blocks share their reads, and each hint is
// either looked up or dropped.
func TestAFloodOfHintsReadsEachBlockOnce(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	const blocks, senders, each = 5, 8, 40
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	a.onDisk(t, c, 1, blocks)
	publisher, body := a.poolPublisher(t), encodedHint(1, blocks, "")
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for range each {
				a.hint(t, publisher, body)
			}
		})
	}
	wg.Wait()
	agenttest.Eventually(t, "every hint is counted", func() bool {
		h := hintStats(a)
		return h.Taken+h.Dropped == senders*each && a.Stats().Quiet
	})
	if h, n := hintStats(a), a.Stats().Pools[0].Promotions; n != blocks || h.Blocks != blocks {
		t.Errorf("%d blocks were read for %+v, want each of %d once", n, h, blocks)
	}
	a.WantFound(t, c, 1, blocks)
}

// TestHintsAreOffWithoutWhatTheyNeed: an agent without a disk tier, or that must not read ahead, takes
// no hints.
func TestHintsAreOffWithoutWhatTheyNeed(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	for name, change := range map[string]func(*agent.Config){
		"no disk tier": func(c *agent.Config) { c.Tiers.DiskBytes = 0 },
		"NoPrefetch":   func(c *agent.Config) { c.NoPrefetch = true },
	} {
		cfg := testConfig(t)
		change(&cfg)
		a := startAgent(t, cfg)
		a.Scheduler(t, 1)
		if status := a.hint(t, a.poolPublisher(t), encodedHint(1, 1, "")); status != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", name, status)
		}
	}
}
