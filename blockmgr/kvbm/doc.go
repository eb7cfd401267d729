// Package kvbm makes a block manager of KVBM's configuration: New takes a
// config.Config, as users of KVBM's KvBlockManager fill it in, and a Place, which
// says what a Config has no field for, and opens a blockmgr.Manager with the pool
// of that one model.
//
//	m, err := kvbm.New(ctx, cfg, kvbm.Place{Model: …, HostDir: …, Consolidate: consolidated.Start})
//	s, err := m.Begin()
//	blocks, err := m.Pool().Allocate(s, n) … Register … Match
//	m.Close()
//
// It is for programs that embed the manager; examples/embed is one. The agent is not one of them: it
// serves many models and engines, and opens its blockmgr.Manager itself.
//
// # What becomes of the fields
//
//   - HostLayout and DiskLayout: the tier holds exactly NumBlocks blocks. All bytes
//     lie in the manager's own files, in slots of whole pages. A Storage therefore
//     stands for room and not for memory: it must be large enough for the slots, and
//     one that is config.Located names the directory, in the place of the Place's.
//     An Allocator is asked once, for the size of all slots, and what it makes is
//     taken like a Storage; one that is an io.Closer is closed when the manager is
//     done with it. Generation words and the slot table, some 136 bytes a slot, come
//     on top. Only FullyContiguous is stored.
//   - Logical LeaderWorkerSharded: the parts of all of the node's ranks lie in one
//     slot. Sharding says where.
//   - DeviceLayout: it is checked, and its filter answers ShouldStore. Its storage is
//     not touched and its allocator not asked: the device's blocks are the engine's.
//     What there is in G1 is known from the engine's events alone; Status and Reset
//     of G1 are errors that say so.
//   - HostLayout.OffloadFilter: asked before a block is written to disk, and nil
//     lets every block pass. Without a host layout blocks only pass through host
//     memory, and no filter is asked, as in KVBM.
//   - Events: called in the order in which things happened, by whoever made them
//     happen, with the pool's lock held. It must not block or call back. Blocks that
//     an earlier manager left are announced before New returns.
//   - Consolidator: Place.Consolidate starts it, which is agent/consolidated.Start.
//   - Reset: served one request at a time. One that comes while blocks are in use
//     is refused, logged and counted.
//   - Metrics: KVBM's counters and hit rates, from what the pool counted, once a
//     second and at the end.
//   - Runtime.NIXL: the values are checked, and Config.Warnings are logged: blocks
//     move without NIXL.
//
// # Restart
//
// The next manager in the same directories finds both tiers as they were left, if
// Place and Model say the same: everything in them that makes bytes mean something
// else is part of the blocks' identity. Blocks of another model give their room up
// when it is needed. What a dead program's sessions held is free again when the
// processes that they had named are gone, at once where they named none.
//
// # Ownership and concurrency
//
// Manager is safe for concurrent use. It lives until Close, the end of New's
// context, or Runtime.Cancellation, whichever is first; Done says when it has
// ended. It owns its files, its goroutines and what an Allocator made, and borrows
// everything else in Config and Place until it has ended.
//
// # Failure
//
// New fails with an error that names the field, and leaves nothing open. After
// that a disk that fails costs misses, as package blockmgr says.
package kvbm
