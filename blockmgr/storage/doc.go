// Package storage is where the bytes of blocks lie: extents of fixed-size slots,
// in files that are mapped as host memory or read and written as disk, and the
// slot table that says what is in each slot.
//
// # Files
//
// An arena is a directory:
//
//	slots.table               the header, twice; in a host table the session
//	                          table; then for each extent a section
//	extent-00000003-0000002a  the slots of extent 42, whose section is number 3
//
// A section is a page that says whose it is, the 128-byte records of its slots
// (see AppendRecord) and, in a host table, a pin word for each slot. A host
// extent starts with a generation word for each slot, and has the suffix .new
// until it is populated, and again when it goes.
//
// The number of a section is used again when its extent is gone. The id of an
// extent is not: a client may map a file for longer than the agent knows of it.
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
//   - A tier of B bytes and one namespace has B / slot size slots. What is in the
//     files besides slots is not part of the budget; see ArenaConfig.
//   - A record is either whole or recognised as damaged (CRC32C).
//   - A file that is not ours is refused (ErrForeign), and so is the table of a
//     tier of the other kind.
//   - A disk table of an earlier version is migrated. One of a later version is set
//     aside as slots.table.newer, one that is damaged as slots.table.unreadable, and
//     the tier starts empty, with one warning.
//   - A host table of another boot is made anew, with a warning; and where
//     ArenaConfig.ExtentBytes is set, a table for extents of another size.
//   - The room of an extent that is dropped is given to another only when its file
//     is gone.
//
// # What outlives what
//
// Both arenas outlive the agent, the disk's also the boot. Each is opened with
// the extents and records it had, and the host arena with its pins and sessions.
// The agent may be killed at any instant. The header is written to the copy that
// is not in use. A host file gets its name, and a disk file comes into being,
// when its section is complete, and a file whose section does not name its id is
// rubbish, which the next open unlinks. A session changes with one word. What was
// in the middle of a change is as before or as after, but for a record, which may
// be damaged.
//
// Extents wait to be claimed by their namespace. They count in the budget, and
// while nobody claims them they yield to whoever needs the room; but not as long
// as the session table has a session of their namespace, whose processes may
// still write to them. Where a host arena cannot be taken over, its files are
// unlinked, and engines that still map them stay on the old memory, which nobody
// will ever hand out again.
//
// After a power loss the header and the first state of each section are whole,
// because they were synced before they were used. Everything later is synced
// only when the caller asks for it: bytes and records may be missing or disagree
// in any way, and checksums, which are bound to key and generation, show that
// when a block is read (ContentSum, Bind).
//
// # Ownership and concurrency
//
// Whoever opened an arena closes it, after the last use of its parts. Arenas and
// session tables are safe for concurrent use. A Section is guarded by its pool;
// its pin words are atomic, and reads and writes of different slots of an extent
// may run at once. Lock order: arena.mu, then table.mu or SessionTable.mu.
//
// # Failure
//
// Errors are returned and name the file. Mapped memory that a client truncated
// or hardware lost gives ErrMemory instead of a signal, under Guard and from
// disk reads and writes, so that nobody blames the disk for it. Files that are
// not taken over are logged with the reason.
package storage
