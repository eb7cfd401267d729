// Package disk measures the block manager against what the machine can do: disk
// throughput against fio, copies into shared memory against memcpy, look-ups and
// collector pauses with many blocks registered.
//
// # What is compared
//
// Every ratio comes from rounds that alternate within one run, ours and the
// ceiling, with the order swapped from round to round: absolute figures of a
// shared machine mean little, and what disturbs one side disturbs the other.
//
//	disk write   Commit until everything is on disk, checksums on, against fio
//	disk read    Lookup of blocks that are on disk only, checksums verified,
//	             against fio
//	copy         another process fills granted slots; until the last one is
//	             sealed, against memcpy in a process of its own
//	look-up      a prefix of host blocks in a pool with many more on disk
//	collector    stop-the-world pauses of that process while it is used
//
// The disk files of both sides lie in one directory, have one size, and are
// read and written with O_DIRECT at the same depth, in blocks of the same size.
// fio is run with each I/O engine that promises to be fast, and the fastest
// counts. Where there is no fio, a plain loop of pread and pwrite takes its place,
// and Result.Ceiling says so.
//
// # How disk rounds avoid caches
//
// The host tier has room for one round. A write round stores a new prompt, which
// takes the place of the last one on disk, and of whatever is in host memory; a
// read round looks up a second prompt that was written once, and is on disk only
// because of that. Each round checks the counters of the pool, so a round that
// did not do the I/O it is measured by is an error.
//
// # Many blocks
//
// Millions of registered blocks are made without writing them: the slot table of
// a disk arena gets sealed records of blocks of zeros, whose extents are holes.
// Their checksums are right, so that the pool recovers and even promotes them.
//
// # Ownership and failure
//
// Run owns the directories that it makes below Options.Dir and Options.HostDir,
// and the processes that it starts; all are gone when it returns, also when its
// context ends. Nothing in this package is safe for concurrent use. A manager that
// loses a block, or serves other bytes than were stored, fails the run.
package disk
