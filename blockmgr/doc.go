// Package blockmgr keeps the KV blocks of one node in host memory and on disk. It decides which
// blocks are stored, in which tier and for how long, and which session may use which slot.
//
//	m, err := blockmgr.Open(cfg)
//	pool, err := m.Pool(namespace)
//	granted, err := pool.Grant(session, blocks, 0) // the engine fills the slots
//	err = pool.Commit(session, slots)              // the blocks are visible
//	found, err := pool.Lookup(ctx, session, blocks) // pinned slots; the engine copies them
//
// # Guarantees
//
//   - A block is visible only after Commit or Register, or after its bytes were read
//     from disk and matched key and checksum. A copy that fails never registers.
//   - A pinned or granted slot goes to no other session, in this agent or the next: grants,
//     pins and sessions are on record before the call that makes them returns.
//   - Residency changes reach the EventSink in the order in which they happen. A removal
//     precedes any later store of its key and any later grant of its slot.
//   - In each tier free + granted + staging + receiving + quarantined + active + inactive =
//     capacity.
//   - Queues, growth, pins and tries are bounded. Every drop and refusal has a counter.
//
// # Ownership and concurrency
//
// Manager and Pool are safe for concurrent use. The slots in a result belong to the
// session until Unpin, Commit, Abort or EndSession. Each pool has one mutex, which guards
// its tier.Set and its diskio.Mover. No I/O, no checksum and no making of an extent
// happens under it, and none under Manager.mu. The sink is called with it held.
//
// # Failure
//
// A block that cannot be read is a miss. One that cannot be written stays in host memory. A
// full tier refuses a grant. A disk that fails or stalls is not used for a while.
//
// docs/block-manager.md tells the rest: restart, eviction, growth, several namespaces.
package blockmgr
