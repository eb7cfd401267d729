// Package storage has the arenas of extents, and the slot tables that describe the slots'
// contents. Package extent has the bytes.
//
//	arena, err := storage.OpenDiskArena(storage.ArenaConfig{Dir: dir, Bytes: 1 << 40, Log: log})
//	ns, err := arena.Namespace(id, slotBytes)
//	opened, err := arena.Grow(ns, slotBytes, 1, 0)
//
// An arena is a directory with the file slots.table and a file for each extent.
// docs/formats.md describes both, and what outlives an agent, a boot and a power loss.
//
// # Guarantees
//
//   - One agent per arena: the slot table is locked while it is open, and a second open
//     fails with ErrLocked.
//   - A record is either whole or recognised as damaged (CRC32C).
//   - A kill of the agent at any instant leaves header, sections and sessions as before
//     or as after the interrupted change. Only a record may be damaged.
//   - A host record, pin word or session is in shared memory when its method returns. A
//     disk record is on disk after WritePages and DiskArena.Sync.
//   - The bytes of a dropped extent return to the budget when its file is gone.
//
// # Ownership and concurrency
//
// The caller that opened an arena closes it, after the last use of its extents. Arenas and
// session tables are safe for concurrent use. A Section is guarded by its pool, but for
// its pin words, which are atomic. Lock order: arena.mu, then table.mu or
// SessionTable.mu.
//
// # Failure
//
// Errors name the file. ErrForeign refuses the slots.table of another program. A table of
// another version or a damaged one is migrated or renamed, with a log line.
package storage
