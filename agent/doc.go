// Package agent is the composition root of a node: it makes the parts of an agent from one
// configuration, starts and stops them in order, and shows their statistics.
//
//	a, err := agent.New(ctx, agent.Config{Node: "node-1", Socket: "/run/blockyard/agent.sock", ...}, log)
//	err = a.Run(ctx) // serves until ctx ends
//
// # Parts
//
//	Agent ── events.Hub      streams of pools and ranks, and their outputs
//	      ── pools.Set       the block manager, one pool for each namespace
//	      ── engine.Server   the engines' socket and its sessions
//	      ── admin.Server    health, metrics, statistics; control of pools; KVBM's metrics
//
// Agent owns all of them, and nothing outlives Run. engine uses pools and events, pools
// uses events, admin sees the pools alone. Only metrics*.go imports Prometheus. Each
// package's doc.go has its guarantees and its locks; ARCHITECTURE.md has the lock order
// of the process.
//
// # Start and stop
//
// New checks the whole configuration, then opens the outputs, the block manager, the
// engines' socket and the HTTP listeners. When a step fails or the context ends, New
// undoes the steps before. When Run's context ends: /readyz says so, accepting stops, and
// schedulers are asked to drain. When their sessions have ended, or after
// Config.DrainTimeout, connections close. Then ranks and pools are announced as gone, the
// block manager writes the blocks queued for disk, and outputs and HTTP servers close. Both
// tiers stay for the next start, unless the host tier is to be discarded. A killed agent
// leaves the same, except for blocks that were not sealed.
//
// # Failure
//
// Without NATS events go over HTTP and ZMQ. When the events of a rank cannot be followed,
// routers do not see the device blocks of its worker. Nothing else is lost. A panic of a
// session ends that session.
package agent
