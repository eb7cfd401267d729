package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// The engine stores a block on its device. The test stores the block in the manager's host memory,
// from where it goes to disk. A subscriber of the consolidated endpoint hears of the block in each
// tier, and a scrape counts the offload.
func TestSubscriberAndScrapeSeeTheBlock(t *testing.T) {
	engine, err := zmqpub.New(zmqpub.Options{BufferSteps: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	port := freePort(t)
	ctx, stop := context.WithCancel(t.Context())
	m, metrics, err := start(ctx, []string{
		"DYN_KVBM_CPU_CACHE_GB=0.02", "DYN_KVBM_DISK_CACHE_GB=0.02", "DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER=1",
		"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=tiered",
		fmt.Sprintf("DYN_KVBM_LEADER_ZMQ_PUB_PORT=%d", port-1000), fmt.Sprintf("DYN_KVBM_LEADER_ZMQ_ACK_PORT=%d", port-999),
	}, engine.Events, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	sub := subscribe(t, port)
	if err := store(m, tokens, "keys and values"); err != nil {
		t.Fatal(err)
	}
	awaitTiers(t, sub, func() {
		engine.Publish(engineevent.AppendBatch(nil, &engineevent.Batch{HasRank: true, Events: []engineevent.Event{{
			Kind: kvevent.Stored, BlockHashes: []kv.EngineHash{7}, Tokens: tokens, BlockSize: 16, Medium: "GPU",
		}}}))
	})
	want := "kvbm_offload_blocks_d2h 1\n"
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(scrape(metrics), want); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("no %q in\n%s", want, scrape(metrics))
		}
	}
	stop()
	<-m.Done()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// freePort returns a port that nobody has bound.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// subscribe returns a SUB socket as Dynamo's worker has one.
func subscribe(t *testing.T, port int) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, err := range []error{s.SetSubscribe(""), s.SetRcvtimeo(100 * time.Millisecond), s.Connect(fmt.Sprintf("tcp://127.0.0.1:%d", port))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// awaitTiers receives until a block was stored in each tier. It calls publish before each
// receive, because the program may subscribe after the first call.
func awaitTiers(t *testing.T, sub *zmq.Socket, publish func()) {
	t.Helper()
	media := make(map[string]bool)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		publish()
		parts, err := sub.RecvMessageBytes(0)
		if err != nil {
			continue // a timeout
		}
		var batch engineevent.Batch
		if err := new(engineevent.Decoder).Decode(parts[2], &batch); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Events {
			e := &batch.Events[i]
			media[e.Medium] = media[e.Medium] || e.Kind == kvevent.Stored
		}
		if media["GPU"] && media["CPU_TIER1"] && media["CPU_TIER2"] {
			return
		}
	}
	t.Fatalf("the block was not stored in every tier: %v", media)
}

func scrape(metrics http.Handler) string {
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// store keeps one block with its tokens.
func store(m *kvbm.Manager, tokens []uint32, bytes string) error {
	session, err := m.Begin()
	if err != nil {
		return err
	}
	defer m.Pool().EndSession(session, nil)
	blocks, err := m.Pool().Allocate(session, 1)
	if err != nil {
		return err
	}
	id := blockmgr.NewIdentifier()
	block := id.First(id.Root(m.Pool().NamespaceID(), "", "", ""), tokens)
	if err := blocks[0].ApplyTokenBlock(blockmgr.TokenBlock{Block: block, Tokens: tokens}); err != nil {
		return err
	}
	copy(blocks[0].Data(), bytes)
	_, err = m.Pool().Register(session, blocks)
	return err
}
