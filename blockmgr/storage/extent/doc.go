// Package extent holds the bytes of blocks: files of fixed-size slots, which are
// mapped as host memory (Host) or read and written as disk (Disk).
//
//	geo := extent.DiskGeometry(64, 2<<20)
//	disk, err := extent.CreateDisk(path, geo, extent.DiskOptions{})
//	...
//	err = disk.WriteSlot(3, slot) // slot: geo.SlotBytes of page-aligned memory
//
// # Guarantees
//
//   - A host file is allocated and faulted in before it gets its name. Nobody who
//     maps the file meets a hole, which would be a SIGBUS.
//   - A disk file is allocated where the file system can. Sparse reports the rest.
//   - A slot starts at a multiple of PageSize, so that O_DIRECT moves bytes straight
//     between disk and mapped memory.
//   - A generation word for each slot lies at the head of a host file. The word
//     changes before the slot is granted again.
//
// # Ownership and concurrency
//
// Whoever created or opened an extent closes it, after the last use of its slots.
// Methods on different slots may run at once. The package does not know which block
// a slot holds; see package storage.
//
// # Failure
//
// Errors name the file. Mapped memory that a client truncated or hardware lost gives
// ErrMemory instead of a signal, under Guard and from disk reads and writes.
package extent
