package agent

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// misbehaviour is what a client does until its connection, or ctx, ends. It may
// connect again; a session is of worker 2.
type misbehaviour func(ctx context.Context, t *testing.T, a *testAgent)

// connected runs do with a fresh connection that ctx closes.
func connected(ctx context.Context, a *testAgent, do func(c *proto.Conn)) {
	c, err := proto.Dial(ctx, a.cfg.Socket)
	if err != nil {
		return // the agent has as many as it takes, or the test ends
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	do(c)
}

// greeted is connected after a scheduler's handshake.
func greeted(ctx context.Context, a *testAgent, do func(c *proto.Conn)) {
	connected(ctx, a, func(c *proto.Conn) {
		h := helloOf(2)
		h.Major, h.Role, h.WantEvicted = proto.VersionMajor, string(proto.RoleScheduler), true
		if c.Send(proto.TypeHello, 1, &h, nil) != nil {
			return
		}
		if f, err := c.Receive(); err == nil && f.Type == proto.TypeWelcome {
			do(c)
		}
	})
}

// flood sends a frame for as long as it is taken, and reads nothing.
func flood(typ proto.Type, corr uint32, m proto.Message) misbehaviour {
	return func(ctx context.Context, t *testing.T, a *testAgent) {
		b, err := proto.AppendFrame(nil, typ, corr, m)
		if err != nil {
			t.Error(err)
			return
		}
		greeted(ctx, a, func(c *proto.Conn) {
			for {
				if _, err := c.Socket().Write(b); err != nil {
					return
				}
			}
		})
	}
}

// repeat sends one message again and again, each on a connection of its own, and
// waits for its end.
func repeat(greet bool, message []byte) misbehaviour {
	with := connected
	if greet {
		with = greeted
	}
	return func(ctx context.Context, _ *testing.T, a *testAgent) {
		for ctx.Err() == nil {
			with(ctx, a, func(c *proto.Conn) {
				_, _ = c.Socket().Write(message) // it may have been cut off already
				for {
					if _, err := c.Receive(); err != nil {
						return
					}
				}
			})
		}
	}
}

// silent holds connections and says nothing.
func silent(ctx context.Context, _ *testing.T, a *testAgent) {
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { connected(ctx, a, func(*proto.Conn) { <-ctx.Done() }) })
	}
	all.Wait()
}

// Whatever one client does, another one's calls take no longer than they would:
// here a client that does not read may be waited for 30 s, and nobody else waits.
func TestClientThatMisbehavesHurtsOnlyItself(t *testing.T) {
	header := func(typ proto.Type, body uint32) []byte {
		return proto.AppendHeader(nil, proto.Header{Type: typ, Corr: 1, Body: body})
	}
	for name, bad := range map[string]misbehaviour{
		"floods with lookups": flood(proto.TypeLookup, 1, &proto.Lookup{Request: 1, Count: 1}),
		"floods with stats":   flood(proto.TypeStats, 0, &proto.Stats{Loads: 1}),
		"floods with tokens":  flood(proto.TypeOpen, 0, &proto.Open{Request: 1, Tokens: make([]byte, 4*proto.MaxTokensPerFrame)}),
		"floods with resets":  flood(proto.TypeReset, 1, &proto.Reset{}),
		"never reads": func(ctx context.Context, _ *testing.T, a *testAgent) {
			greeted(ctx, a, func(*proto.Conn) { <-ctx.Done() })
		},
		"sends half a header":       repeat(true, header(proto.TypeOpen, 0)[:7]),
		"sends half a body":         repeat(true, append(header(proto.TypeOpen, 100), 0x81, 0xa3)),
		"sends more than a frame":   repeat(true, make([]byte, proto.MaxFrame+1)),
		"begins with half a frame":  repeat(false, header(proto.TypeHello, 100)),
		"begins with a large frame": repeat(false, make([]byte, 100<<10)),
		"connects and says nothing": silent,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.SendTimeout = 30 * time.Second
			a := startAgent(t, cfg)
			good := a.scheduler(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			var done sync.WaitGroup
			done.Go(func() { bad(ctx, t, a) })
			var slowest time.Duration
			for i := range 300 { // more than the host tier holds, so that blocks are evicted
				begin := time.Now()
				storePrompt(t, good, proto.RequestID{ID: uint64(i)}, i, 1)
				slowest = max(slowest, time.Since(begin))
			}
			if slowest > cfg.SendTimeout/3 {
				t.Errorf("the slowest of 300 stores took %v", slowest)
			}
			t.Logf("the slowest of 300 stores took %v", slowest)
			cancel()
			done.Wait()
			eventually(t, "the client's session ends", func() bool { return a.Stats().Sessions == 1 })
			storePrompt(t, good, proto.RequestID{ID: 1000}, 1000, 1)
		})
	}
}
