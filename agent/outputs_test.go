package agent_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// fakePublisher is an engine's PUB socket, played by a test.
type fakePublisher struct {
	t    *testing.T
	sock *zmq4.Socket
	seq  uint64
}

func newFakePublisher(t *testing.T) (*fakePublisher, string) {
	t.Helper()
	sock, err := zmq4.NewSocket(zmq4.PUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() })
	agenttest.NoError(t, sock.Bind("tcp://127.0.0.1:*"))
	endpoint, err := sock.GetLastEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	return &fakePublisher{t: t, sock: sock}, endpoint
}

// stored publishes a batch that stores one block at the start of a sequence.
func (p *fakePublisher) stored(hash uint64, tokens []uint32) {
	p.t.Helper()
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, 1)
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendArrayHeader(b, 7)
	b = msgp.AppendString(b, "BlockStored")
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendUint64(b, hash)
	b = msgp.AppendNil(b)
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, token := range tokens {
		b = msgp.AppendUint32(b, token)
	}
	b = msgp.AppendInt(b, len(tokens))
	b = msgp.AppendNil(b)
	b = msgp.AppendString(b, "GPU")
	b = msgp.AppendInt(b, 0)
	if _, err := p.sock.SendMessage("", binary.BigEndian.AppendUint64(nil, p.seq), b); err != nil {
		p.t.Fatal(err)
	}
	p.seq++
}

// heldByMedium reads batches from endpoint until done says that it has seen enough
// of what is held in each medium.
func heldByMedium(t *testing.T, endpoint string, done func(held map[string]map[kv.EngineHash]bool) bool) {
	t.Helper()
	sub, err := zmq4.NewSocket(zmq4.SUB)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for _, err := range []error{sub.SetSubscribe(""), sub.SetRcvtimeo(100 * time.Millisecond), sub.Connect(endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var decoder engineevent.Decoder
	var batch engineevent.Batch
	held := map[string]map[kv.EngineHash]bool{}
	for deadline := time.Now().Add(20 * time.Second); !done(held); {
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s the stream says %v", held)
		}
		parts, err := sub.RecvMessageBytes(0)
		if err != nil {
			continue
		}
		if err := decoder.Decode(parts[2], &batch); err != nil || len(batch.Bad) > 0 {
			t.Fatalf("batch %x: %v, %v", parts[2], err, batch.Bad)
		}
		for _, e := range batch.Events {
			if e.Kind == kvevent.Cleared {
				held = map[string]map[kv.EngineHash]bool{}
			}
			if held[e.Medium] == nil {
				held[e.Medium] = map[kv.EngineHash]bool{}
			}
			for _, h := range e.BlockHashes {
				held[e.Medium][h] = e.Kind == kvevent.Stored
			}
		}
	}
}

// Who subscribes to a worker's consolidated stream sees the engine's blocks and the
// pool's under the names that the pool has for them, whatever the engine calls them.
func TestEventsInTheEnginesFormatHoldTheEnginesBlocksAndThePools(t *testing.T) {
	engine, events := newFakePublisher(t)
	hello := agenttest.Hello(1)
	hello.EventsEndpoint = events
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	a := startAgent(t, testConfig(t))
	c := a.Connect(t, hello)
	tokens := agenttest.Prompt(1, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 1)
	var hasher kv.Hasher
	want := kv.EngineHash(hasher.Local(tokens, kv.LocalSeed("", ""), nil)) // a first block
	heldByMedium(t, hello.ConsolidatedEndpoint, func(held map[string]map[kv.EngineHash]bool) bool {
		engine.stored(77, tokens) // again and again: PUB drops what nobody has subscribed to yet
		return held["GPU"][want] && held["CPU_TIER1"][want]
	})
	s := a.Stats().Outputs
	if len(s.Ranks) != 1 || s.Ranks[0].ZMQ == nil || s.Ranks[0].Blocks < 2 || s.ZMQFailed != 0 {
		t.Errorf("outputs %+v, want one rank with a block in two tiers", s)
	}
}

// A port that is taken costs the engine this stream and not its cache.
func TestConsolidatedEndpointThatIsTakenIsCounted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hello := agenttest.Hello(1)
	hello.ConsolidatedEndpoint = "tcp://" + l.Addr().String()
	a := startAgent(t, testConfig(t))
	c := a.Connect(t, hello)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 1)
	if s := a.Stats().Outputs; s.ZMQFailed != 1 || len(s.Ranks) != 0 {
		t.Errorf("outputs %+v, want one that failed", s)
	}
	if w := c.Welcome().Warning; !strings.Contains(w, hello.ConsolidatedEndpoint) {
		t.Errorf("WELCOME warns %q, want the endpoint", w)
	}
}

// Two engines with KVBM's defaults expect their streams at one port. The second one has its
// cache, and is told that its Dynamo worker follows the first one's blocks.
func TestSecondEngineAtOnePortIsWarnedOfTheFirst(t *testing.T) {
	a := startAgent(t, testConfig(t))
	port := agenttest.FreePort(t)
	var warnings []string
	for worker := range uint64(2) {
		hello := agenttest.Hello(1 + worker)
		hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://0.0.0.0:%d", port)
		c := a.Connect(t, hello)
		agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1+int(worker), 1)
		warnings = append(warnings, c.Welcome().Warning)
	}
	if warnings[0] != "" {
		t.Errorf("the first engine is warned: %s", warnings[0])
	}
	for _, want := range []string{fmt.Sprint(port), kv.WorkerOwner(kv.Worker{ID: 1}).String(), "DYN_KVBM_LEADER_ZMQ_PUB_PORT"} {
		if !strings.Contains(warnings[1], want) {
			t.Errorf("the second engine is warned %q, want %q", warnings[1], want)
		}
	}
}

// Discovery that cannot be written costs an engine Dynamo's routers and not its cache.
func TestEngineHasItsCacheWithoutDynamosDirectory(t *testing.T) {
	cfg := testConfig(t)
	cfg.Events.Embedded = &nats.EmbeddedOptions{}
	dir := filepath.Join(t.TempDir(), "kv")
	cfg.Events.Dynamo = &dynamo.Options{Namespace: "dynamo", Component: "backend", Endpoint: "generate", FileKV: dir}
	a := startAgent(t, cfg)
	agenttest.NoError(t, errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)))
	c := a.Connect(t, agenttest.Hello(1))
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 1)
	if s := a.Stats().Outputs; s.DynamoFailed != 1 || !strings.Contains(c.Welcome().Warning, "Dynamo") {
		t.Errorf("%d counted, WELCOME warns %q", s.DynamoFailed, c.Welcome().Warning)
	}
	if err := os.Remove(dir); err != nil { // so that the agent can close what it opened
		t.Error(err)
	}
}

// The NATS server inside an agent keeps its token and its port from one agent to the next,
// in a file that others cannot read, whatever was left beside it.
func TestEmbeddedServerIsFoundAgainByItsFile(t *testing.T) {
	cfg := testConfig(t)
	cfg.Events.Embedded = &nats.EmbeddedOptions{}
	agenttest.NoError(t, os.WriteFile(cfg.Socket+".nats.new", nil, 0o644))
	var urls []string
	for range 2 {
		a := startAgent(t, cfg)
		b, err := os.ReadFile(cfg.Socket + ".nats")
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(cfg.Socket + ".nats"); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of the file: %v, %v", info.Mode(), err)
		}
		urls = append(urls, strings.TrimSpace(string(b)))
		n, err := nats.Connect(t.Context(), nats.Options{URL: urls[0]})
		if err != nil || !n.Connected() {
			t.Errorf("the URL of the first agent's file: %v", err)
		} else if err := n.Close(); err != nil {
			t.Error(err)
		}
		a.stop()
	}
	if urls[0] != urls[1] {
		t.Errorf("URLs %q: want the same", urls)
	}
}

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
	c := a.Connect(t, hello)
	heldByMedium(t, hello.ConsolidatedEndpoint, func(held map[string]map[kv.EngineHash]bool) bool {
		tellOfSystem()
		return len(held["GPU"]) == 1
	})
	c.Close()
	a.stop()

	a = startAgent(t, cfg)
	c = a.Connect(t, hello)
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
	agenttest.NoError(t, c.Open(r, "", "", "", append(slices.Clone(first), second...)))
	if _, err := c.Lookup(t.Context(), r, 0, 2, 0); err != nil {
		t.Fatal(err)
	}
}

// embeddedConfig is an agent with a NATS server inside, whose socket's directory is
// not there yet, as on a fresh machine.
func embeddedConfig(t *testing.T) agent.Config {
	t.Helper()
	cfg := testConfig(t)
	cfg.Socket = filepath.Join(t.TempDir(), "run", "agent.sock")
	cfg.Events.Embedded = &nats.EmbeddedOptions{}
	return cfg
}

// TestRefusedAgentLeavesTheURLFile: an agent that finds its socket in use does not
// send the routers of the one that serves on it to its own server.
func TestRefusedAgentLeavesTheURLFile(t *testing.T) {
	cfg := embeddedConfig(t)
	startAgent(t, cfg)
	before, err := os.ReadFile(cfg.Socket + ".nats")
	if err != nil {
		t.Fatal(err)
	}
	other := embeddedConfig(t)
	other.Socket = cfg.Socket
	if _, err := agent.New(t.Context(), other, nil); err == nil {
		t.Fatal("a second agent started on the socket of the first")
	}
	if after, err := os.ReadFile(cfg.Socket + ".nats"); err != nil || string(after) != string(before) {
		t.Errorf("URL file: %q, error %v; before %q", after, err, before)
	}
}
