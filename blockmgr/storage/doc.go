// Package storage is where the bytes of blocks lie: extents of fixed-size slots,
// in files that are mapped as host memory or read and written as disk, and the
// slot table that says what is in each slot.
//
// # Files
//
// An arena is a directory:
//
//	slots.table       header page, then for each extent a section of 128-byte
//	                  records (see AppendRecord and header)
//	extent-0000002a   the slots of extent 42; a host extent starts with one
//	                  generation word per slot
//
// An extent belongs to one namespace; its records carry the namespace's index
// in the header's directory. Slots are a multiple of 4096 bytes, so that disk
// I/O goes straight between disk and mapped memory with O_DIRECT.
//
// # Guarantees
//
//   - One agent per arena: the slot table is locked while it is open, and a
//     second open fails with ErrLocked.
//   - A host extent is fully allocated and faulted in before anybody learns of
//     it. A disk extent is allocated where the file system can.
//   - A record is either whole or recognised as damaged (CRC32C).
//   - A file that is not ours is refused (ErrForeign), and so is the table of a
//     tier of the other kind and one of a later version (ErrNewer); a table of an earlier version or of another
//     extent size is made anew, with a warning.
//
// # What outlives what
//
// The disk arena outlives the agent: it is opened with the extents and records
// it had. The host arena starts cold: extents of a dead agent are unlinked and
// made anew, and engines that still map them stay on the old memory, which
// nobody will ever hand out again.
//
// Nothing is synced. After a power loss bytes and records may be missing or
// disagree in any way; checksums, which are bound to key and generation, show
// that when a block is read (ContentSum, Bind).
//
// # Ownership and concurrency
//
// Whoever opened an arena closes it, after the last use of its parts. Arenas
// are safe for concurrent use. A Section is guarded by its pool; reads and
// writes of different slots of an extent may run at once.
//
// # Failure
//
// Errors are returned and name the file. Mapped memory that a client truncated
// or hardware lost gives ErrMemory instead of a signal, under Guard and from
// disk reads and writes, so that nobody blames the disk for it.
package storage
