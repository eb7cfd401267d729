// Package kvbm opens a block manager from KVBM's configuration, for programs that embed it.
// examples/embed is such a program.
//
//	m, err := kvbm.New(ctx, cfg, kvbm.Place{Model: …, HostDir: …, Consolidate: consolidated.Start})
//	s, err := m.Begin()
//	blocks, err := m.Pool().Allocate(s, n) … Register … Match
//	m.Close()
//
// A config.Config describes the manager as KVBM's users know it. A Place adds what a Config
// has no field for. NewFromEnviron is New with KVBM's environment variables: they size the
// tiers and name the consolidator's ports.
//
// # The fields
//
//   - HostLayout, DiskLayout: the tier holds exactly NumBlocks blocks, in slots of whole
//     pages, in the manager's own files. A Storage must have room for the slots, and a
//     config.Located names their directory. An Allocator is asked once.
//   - Logical LeaderWorkerSharded: a slot holds the parts of all ranks; see Sharding.
//   - DeviceLayout: checked. Its filter answers ShouldStore. G1 is the engine's own.
//   - HostLayout.OffloadFilter: asked before a block is written to disk.
//   - Events: called with the pool's lock held, in the order of the changes.
//   - Consolidator: Place.Consolidate starts it.
//   - Reset: one request at a time. A request is refused, and logged, while blocks are in use.
//   - Metrics: sent once a second and at the end.
//
// # Restart
//
// The next manager in the same directories finds both tiers, if Place and Model are the
// same. Blocks of another model give up their room when it is needed. The slots of a dead
// program are free once the processes that its sessions named have exited.
//
// # Ownership, concurrency, failure
//
// Manager is safe for concurrent use. It owns its files, its goroutines, the consolidator and
// the storages of allocators, and borrows the rest of Config and Place until Done. New fails
// with an error that names the field, and leaves nothing open. A disk that fails later costs
// misses.
package kvbm
