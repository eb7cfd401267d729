// Package events publishes the blocks of a node: one stream for each pool and one for each
// worker rank.
//
//	hub, err := events.Open(ctx, cfg, log)
//	go hub.Run(ctx)
//	pool, err := hub.OpenPool(owner, ns, card)        // package pools
//	rank, err := hub.StartRank(hello, pool.Stream(), engine) // package engine
//	rank.Stop(); pool.End(); err = hub.Close()
//
// # Guarantees
//
// A pool's stream has the order of the block manager's commits: Hub is its EventSink. A rank's
// stream follows its engine's events; lost events are replayed or listed, else the rank is
// degraded. Totals never fall: ended streams and outputs stay in the hub's sums. An output
// that cannot be opened costs the engine that output, and WELCOME names it.
//
// # Parts
//
// Hub owns the outputs, the ranks and the pool streams:
//
//	outputs      NATS, the embedded server, HTTP, Dynamo's plane, the table of tokens
//	Rank         own stream, feeds, a rankOutput for each output that knows workers only
//	PoolStream   a pool's stream and feeds
//	checkpoints  a file for each rank: what its engine has cached, for the next agent
//	evictions    notices of blocks that leave a tier, for the sessions that asked
//
// A rank ends with its session, a pool stream with its pool. Outputs close last. A checkpoint
// goes when its engine says BYE to an agent that stays, or when all its processes have exited.
//
// # Locks
//
// blockmgr.Pool's come before Hub.mu, a stream's and an EvictionQueue's. Hub.mu is let go
// before a stream is called. A stream's come before a feed's and a merged stream's.
package events
