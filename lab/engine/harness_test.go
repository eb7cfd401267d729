package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// testNamespace has blocks of 4 tokens and 64 bytes.
func testNamespace() kv.Namespace {
	return kv.Namespace{
		Model: "test", DType: "int8", Layers: 2, OuterDim: 2, BlockSize: 4, InnerDim: 4, DTypeBytes: 1,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1,
	}
}

func testOptions(blocks int) Options {
	return Options{
		Worker: kv.Worker{ID: 1}, Namespace: testNamespace(), DeviceBlocks: blocks,
		MaxBatchedTokens: 16, MaxSeqs: 4, StepBase: time.Millisecond,
	}.withDefaults()
}

// testEngine is a core without sockets. Its events are decoded and collected.
type testEngine struct {
	*core
	api     *api
	naming  naming
	counts  counters
	session *session
	batches []engineevent.Batch
}

// newTestEngine makes an engine, connected to agent unless that is nil.
func newTestEngine(o Options, agent *fakeAgent) *testEngine {
	e := &testEngine{naming: testNaming()}
	_, _ = rand.Read(e.naming.secret[:])
	d := newDevice(o.DeviceBlocks, int(o.Namespace.BlockBytes()))
	var r remote = absent{}
	giveUp := func() {}
	if agent != nil {
		e.session = newSession(&o, hello(&o, 1, "", ""), d, zap.NewNop(), &e.counts)
		l := newLink(&o, agent, agent, d, &e.counts)
		e.session.current.Store(&liveLink{link: l, limit: 1000, enabled: true})
		r, giveUp = e.session, l.close
	}
	e.core = newCore(o, d, r, e.collect, giveUp, &e.counts)
	e.api = &api{opts: o, naming: e.naming, core: e.core}
	return e
}

func testNaming() naming {
	ns := testNamespace()
	return naming{namespace: ns.ID(), blockSize: int(ns.BlockSize)}
}

func (e *testEngine) collect(payload []byte) {
	var d engineevent.Decoder
	var b engineevent.Batch
	if err := d.Decode(payload, &b); err != nil {
		panic(err)
	}
	e.batches = append(e.batches, b)
}

// start runs the core until the returned function is called, in a synctest
// bubble.
func (e *testEngine) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	go e.run(ctx)
	return func() {
		cancel()
		<-e.ended
		if e.session != nil {
			if l := e.session.current.Load(); l != nil {
				l.close()
			}
		}
	}
}

// generate submits a request.
func (e *testEngine) generate(prompt []uint32, out int) *request {
	r, err := e.api.newRequest(&GenerateRequest{Tokens: prompt, OutputTokens: out})
	if err != nil {
		panic(err)
	}
	if err := e.api.submit(r); err != nil {
		panic(err)
	}
	return r
}

// ask runs f in the core and waits for it.
func (e *testEngine) ask(f func()) {
	done := make(chan struct{})
	e.post(func() { f(); close(done) })
	<-done
}

// result waits for a request's end.
func result(r *request) (served Served, output []uint32, err error) {
	for u := range r.updates {
		switch {
		case u.err != nil:
			return served, nil, u.err
		case u.served != nil:
			served = *u.served
		default:
			return served, u.output, nil
		}
	}
	panic("BUG: updates are never closed")
}

// believed replays all events into the multiset of blocks that a subscriber
// would hold.
func (e *testEngine) believed() (map[cacheKey]int, error) {
	held := map[cacheKey]int{}
	for _, b := range e.batches {
		for _, ev := range b.Events {
			for _, hash := range ev.BlockHashes {
				h := cacheKey{hash, ev.Group}
				if ev.Kind == kvevent.Stored {
					held[h]++
				} else if held[h]--; held[h] < 0 {
					return nil, fmt.Errorf("block %x removed more often than stored", h)
				} else if held[h] == 0 {
					delete(held, h)
				}
			}
			if ev.Kind == kvevent.Cleared {
				clear(held)
			}
		}
	}
	return held, nil
}

// checkSettled fails when anything is still held after every request has ended.
func (e *testEngine) checkSettled(t *testing.T, agent *fakeAgent) {
	t.Helper()
	<-time.After(time.Minute) // of the bubble's time: whatever can happen has happened
	synctest.Wait()
	e.ask(func() {
		if !e.quiet() || e.pool.free.n != len(e.pool.blocks) {
			t.Errorf("not settled: %d waiting, %d running, %d conversations, %d of %d blocks free",
				len(e.waiting), len(e.running), e.talks, e.pool.free.n, len(e.pool.blocks))
		}
		held, err := e.believed()
		if err != nil {
			t.Error(err)
		}
		cached := map[cacheKey]int{}
		for i := range e.pool.blocks {
			b := &e.pool.blocks[i]
			if !b.cached {
				continue
			}
			cached[b.key()]++
			if n := wrongBytes(e.device.bytes(int32(i)), b.id.key.InGroup(uint32(b.group))); n > 0 {
				t.Errorf("cached block %d has %d wrong bytes", i, n)
			}
		}
		if fmt.Sprint(held) != fmt.Sprint(cached) {
			t.Errorf("subscribers believe %v, the device holds %v", held, cached)
		}
	})
	if agent != nil && agent.leftovers() != "" {
		t.Errorf("agent: %s", agent.leftovers())
	}
}
