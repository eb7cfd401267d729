package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// misbehaviour is what a client does until its connection, or ctx, ends. It may
// connect again; a session is of worker 2.
type misbehaviour func(ctx context.Context, t *testing.T, a *testAgent)

// connected runs do with a fresh connection that ctx closes.
func connected(ctx context.Context, a *testAgent, do func(c *proto.Conn)) {
	c, err := proto.Dial(ctx, string(a.Socket))
	if err != nil {
		return // the agent has as many as it takes, or the test ends
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	do(c)
}

// greeted is connected after the handshake of a scheduler that says h.
func greeted(ctx context.Context, a *testAgent, h proto.Hello, do func(c *proto.Conn)) {
	connected(ctx, a, func(c *proto.Conn) {
		h.Major, h.Role, h.WantEvicted = proto.VersionMajor, string(proto.RoleScheduler), true
		if c.Send(proto.TypeHello, 1, &h, nil) != nil {
			return
		}
		if f, err := c.Receive(); err == nil && f.Type == proto.TypeWelcome {
			do(c)
		}
	})
}

// drain reads until the connection ends.
func drain(c *proto.Conn) {
	for {
		f, err := c.Receive()
		if err != nil {
			return
		}
		if f.File != nil {
			f.File.Close()
		}
	}
}

// flood sends a frame for as long as it is taken. It reads the answers, or leaves them
// to the agent, whose reading of the connection then ends soon.
func flood(reads bool, typ proto.Type, corr uint32, m proto.Message) misbehaviour {
	return func(ctx context.Context, t *testing.T, a *testAgent) {
		greeted(ctx, a, agenttest.Hello(2), func(c *proto.Conn) { pour(t, c, reads, typ, corr, m) })
	}
}

// pour is flood of a connection that stands.
func pour(t *testing.T, c *proto.Conn, reads bool, typ proto.Type, corr uint32, m proto.Message) {
	b, err := proto.AppendFrame(nil, typ, corr, m)
	if err != nil {
		t.Error(err)
		return
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	if reads {
		reading.Go(func() { drain(c) })
	}
	for {
		if _, err := c.Socket().Write(b); err != nil {
			c.Close()
			return
		}
	}
}

// joined is a worker of worker 2's session that floods with STATS.
func joined(ctx context.Context, t *testing.T, a *testAgent) {
	greeted(ctx, a, agenttest.Hello(2), func(*proto.Conn) {
		connected(ctx, a, func(c *proto.Conn) {
			h := proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleWorker), WorkerID: 2}
			if c.Send(proto.TypeHello, 1, &h, nil) != nil || c.Send(proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 1}, nil) != nil {
				return
			}
			pour(t, c, true, proto.TypeStats, 0, &proto.Stats{Loads: 1})
		})
	})
}

// eager are workers that ask for a scheduler which never comes, without a pause.
func eager(ctx context.Context, t *testing.T, a *testAgent) {
	b, err := proto.AppendFrame(nil, proto.TypeHello, 1, &proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleWorker), WorkerID: 3})
	if err != nil {
		t.Error(err)
		return
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { repeat(false, b)(ctx, t, a) })
	}
	all.Wait()
}

// restless takes another namespace with each session.
func restless(ctx context.Context, _ *testing.T, a *testAgent) {
	for i := 0; ctx.Err() == nil; i++ {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i % (3 * pools.MaxPools))
		greeted(ctx, a, h, func(c *proto.Conn) {
			if c.Send(proto.TypeBye, 2, &proto.Bye{}, nil) == nil {
				drain(c)
			}
		})
	}
}

// repeat sends one message again and again, each on a connection of its own, and
// waits for its end.
func repeat(greet bool, message []byte) misbehaviour {
	with := connected
	if greet {
		with = func(ctx context.Context, a *testAgent, do func(c *proto.Conn)) {
			greeted(ctx, a, agenttest.Hello(2), do)
		}
	}
	return func(ctx context.Context, _ *testing.T, a *testAgent) {
		for ctx.Err() == nil {
			with(ctx, a, func(c *proto.Conn) {
				_, _ = c.Socket().Write(message) // it may have been cut off already
				drain(c)
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

// Whatever one client does, no call of another one waits for it: here a client that does not read
// may be waited for an hour, so that such a call fails the test.
func TestClientThatMisbehavesHurtsOnlyItself(t *testing.T) {
	header := func(typ proto.Type, body uint32) []byte {
		return proto.AppendHeader(nil, proto.Header{Type: typ, Corr: 1, Body: body})
	}
	for name, bad := range map[string]misbehaviour{
		"floods with lookups":                   flood(true, proto.TypeLookup, 1, &proto.Lookup{Request: 1, Count: 1}),
		"floods with lookups and reads nothing": flood(false, proto.TypeLookup, 1, &proto.Lookup{Request: 1, Count: 1}),
		"floods with stats":                     flood(true, proto.TypeStats, 0, &proto.Stats{Loads: 1}),
		"floods with tokens":                    flood(true, proto.TypeOpen, 0, &proto.Open{Request: 1, Tokens: make([]byte, 4*proto.MaxTokensPerFrame)}),
		"floods with resets":                    flood(true, proto.TypeReset, 1, &proto.Reset{}),
		"floods with stats from a worker":       joined,
		"asks for a scheduler that never comes": eager,
		"changes its weights all the time":      restless,
		"never reads": func(ctx context.Context, _ *testing.T, a *testAgent) {
			greeted(ctx, a, agenttest.Hello(2), func(*proto.Conn) { <-ctx.Done() })
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
			cfg.SendTimeout = time.Hour
			// Fewer slots than prompts, so that blocks are evicted, and none that waits for a
			// disk.
			cfg.Tiers.HostBytes, cfg.Tiers.DiskDir, cfg.Tiers.DiskBytes = 512<<10, "", 0
			a := startAgent(t, cfg)
			good := a.Scheduler(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			var done sync.WaitGroup
			defer done.Wait()
			defer cancel()
			done.Go(func() { bad(ctx, t, a) })
			stored := make(chan error, 1)
			go func() { stored <- storePaced(ctx, good, 150) }() // ends with its connection at the latest
			agenttest.Eventually(t, "all prompts are stored", func() bool { return len(stored) > 0 })
			agenttest.NoError(t, <-stored)
			cancel()
			done.Wait()
			agenttest.Eventually(t, "the client's session ends", func() bool { return a.Stats().Sessions == 1 })
			agenttest.StorePrompt(t, good, proto.RequestID{ID: 1000}, 1000, 1)
		})
	}
}

// storePaced stores n prompts, one in a millisecond at most, so that it goes on for long enough
// to be disturbed.
func storePaced(ctx context.Context, c *proto.SchedulerClient, n int) error {
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for i := range n {
		id := proto.RequestID{ID: uint64(i)}
		err := agenttest.Store(ctx, c, id, i, 1)
		// A new namespace may hold what this one has just given up. An engine offers a later block, and gets room.
		for tries := 0; errors.Is(err, agenttest.ErrRefused) && tries < 10; tries++ {
			<-pace.C
			if err = c.CloseRequest(id); err == nil {
				id.ID += 1 << 16
				err = agenttest.Store(ctx, c, id, i, 1)
			}
		}
		if err != nil {
			return fmt.Errorf("prompt %d: %w", i, err)
		}
		<-pace.C
	}
	return nil
}
