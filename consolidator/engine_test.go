package consolidator

import (
	"cmp"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

const testBlockSize = residencytest.BlockSize

// testEngine publishes KV events as vLLM does: a PUB socket (an XPUB, so that a
// test can wait for its subscriber) and a ROUTER that replays a bounded history.
type testEngine struct {
	t *testing.T
	// threeFrames: replies without topic, as SGLang and older vLLM send them.
	threeFrames bool
	// steps bounds the history.
	steps int

	ctx    *zmq4.Context
	pub    *zmq4.Socket
	router *zmq4.Socket
	events string
	replay string
	stop   chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	next    uint64
	history []frame
}

// startEngine binds both sockets; "" is any free port. stopEngine, or the end of
// the test, closes them.
func startEngine(t *testing.T, events, replay string) *testEngine {
	t.Helper()
	e := &testEngine{t: t, steps: 10000, stop: make(chan struct{}), done: make(chan struct{})}
	var err error
	if e.ctx, err = zmq4.NewContext(); err != nil {
		t.Fatal(err)
	}
	e.pub, e.events = e.bind(zmq4.XPUB, events)
	e.router, e.replay = e.bind(zmq4.ROUTER, replay)
	go e.serve()
	t.Cleanup(e.stopEngine)
	return e
}

func (e *testEngine) bind(kind zmq4.Type, endpoint string) (*zmq4.Socket, string) {
	e.t.Helper()
	s, err := e.ctx.NewSocket(kind)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := s.SetLinger(0); err != nil {
		e.t.Fatal(err)
	}
	if err := s.SetRcvtimeo(10 * time.Second); err != nil {
		e.t.Fatal(err)
	}
	if kind == zmq4.XPUB {
		// Without it a subscription that arrives before its predecessor has left is not told.
		if err := s.SetXpubVerbose(1); err != nil {
			e.t.Fatal(err)
		}
	}
	endpoint = cmp.Or(endpoint, "tcp://127.0.0.1:*")
	// A port given up a moment ago may still be in use.
	waittest.Until(e.t, "bind "+endpoint, func() bool { return s.Bind(endpoint) == nil })
	bound, err := s.GetLastEndpoint()
	if err != nil {
		e.t.Fatal(err)
	}
	return s, bound
}

// stopEngine is an engine's death; idempotent.
func (e *testEngine) stopEngine() {
	select {
	case <-e.stop:
		return
	default:
	}
	close(e.stop)
	<-e.done
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range []*zmq4.Socket{e.pub, e.router} {
		if err := s.Close(); err != nil {
			e.t.Error(err)
		}
	}
	if err := e.ctx.Term(); err != nil {
		e.t.Error(err)
	}
}

// awaitSubscriber returns when a SUB socket has subscribed; that others have left
// does not matter.
func (e *testEngine) awaitSubscriber() {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		msg, err := e.pub.RecvBytes(0)
		if err != nil || len(msg) == 0 {
			e.t.Fatalf("subscription %x: %v", msg, err)
		}
		if msg[0] == 1 {
			return
		}
	}
}

// publish makes a batch of events and sends it, unless it is to be lost.
func (e *testEngine) publish(lost bool, events ...engineevent.Event) []byte {
	e.t.Helper()
	payload := engineevent.AppendBatch(nil, &engineevent.Batch{Timestamp: float64(time.Now().UnixNano()), HasRank: true, Events: events})
	e.publishPayload(lost, payload)
	return payload
}

func (e *testEngine) publishPayload(lost bool, payload []byte) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	f := frame{seq: e.next, payload: payload}
	e.next++
	e.history = append(e.history, f)
	if len(e.history) > e.steps {
		e.history = e.history[len(e.history)-e.steps:]
	}
	if !lost {
		e.sendLocked([]byte("kv"), seqFrame(f.seq), payload)
	}
}

// send sends any parts on the live socket.
func (e *testEngine) send(parts ...[]byte) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sendLocked(parts...)
}

func (e *testEngine) sendLocked(parts ...[]byte) {
	e.t.Helper()
	for i, p := range parts {
		flag := zmq4.SNDMORE
		if i == len(parts)-1 {
			flag = 0
		}
		if _, err := e.pub.SendBytes(p, flag); err != nil {
			e.t.Fatal(err)
		}
	}
}

// serve answers replay requests until the engine stops.
func (e *testEngine) serve() {
	defer close(e.done)
	poller := zmq4.NewPoller()
	poller.Add(e.router, zmq4.POLLIN)
	for {
		select {
		case <-e.stop:
			return
		default:
		}
		polled, err := poller.Poll(5 * time.Millisecond)
		if err != nil || len(polled) == 0 {
			continue
		}
		msg, err := e.router.RecvMessageBytes(0)
		if err != nil || len(msg) != 3 || len(msg[2]) != 8 {
			e.t.Errorf("replay request of %d parts: %v", len(msg), err)
			continue
		}
		e.answer(msg[0], binary.BigEndian.Uint64(msg[2]))
	}
}

func (e *testEngine) answer(identity []byte, start uint64) {
	e.mu.Lock()
	history := e.history
	e.mu.Unlock()
	reply := func(seq uint64, payload, topic []byte) {
		parts := [][]byte{identity, {}, topic, seqFrame(seq), payload}
		if e.threeFrames {
			parts = [][]byte{identity, {}, seqFrame(seq), payload}
		}
		if _, err := e.router.SendMessage(parts); err != nil {
			e.t.Errorf("replay reply: %v", err)
		}
	}
	for _, f := range history {
		if f.seq >= start {
			reply(f.seq, f.payload, []byte("kv"))
		}
	}
	reply(1<<64-1, nil, nil)
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// frame is a live message.
type frame struct {
	seq     uint64
	payload []byte
}
