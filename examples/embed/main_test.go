package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// The engine stores a block on its device, the program keeps the block in host memory and
// on disk. A subscriber of the consolidated endpoint hears of the block in each tier, and a
// scrape counts the offload.
func TestSubscriberAndScrapeSeeTheBlock(t *testing.T) {
	engine, err := zmqpub.New(zmqpub.Options{BufferSteps: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	port := freePort(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{
			"DYN_KVBM_CPU_CACHE_GB=0.02", "DYN_KVBM_DISK_CACHE_GB=0.02", "DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER=1",
			"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=tiered",
			fmt.Sprintf("DYN_KVBM_LEADER_ZMQ_PUB_PORT=%d", port-1000), fmt.Sprintf("DYN_KVBM_LEADER_ZMQ_ACK_PORT=%d", port-999),
		}, kvbm.Engine{Kind: "vllm", Events: engine.Events}, t.TempDir(), l)
	}()
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	sub := subscribe(t, port)
	awaitTiers(t, sub, func() {
		engine.Publish(engineevent.AppendBatch(nil, &engineevent.Batch{HasRank: true, Events: []engineevent.Event{{
			Kind: kvevent.Stored, BlockHashes: []kv.EngineHash{7}, Tokens: tokens, BlockSize: 16, Medium: "GPU",
		}}}))
	})
	want := "kvbm_offload_blocks_d2h 1\n"
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(scrape(t, l.Addr()), want); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("no %q in\n%s", want, scrape(t, l.Addr()))
		}
	}
	stop()
	if err := <-ended; err != nil {
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

func scrape(t *testing.T, address net.Addr) string {
	t.Helper()
	r, err := http.Get("http://" + address.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
