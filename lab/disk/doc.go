// Package disk measures the block manager beside what the machine can do: disk
// throughput beside fio, copies into shared memory beside memcpy, and lookups and
// collector pauses with many registered blocks.
//
//	result, err := disk.Run(ctx, disk.Options{Dir: dir, Copier: command, Out: os.Stdout})
//	fmt.Print(result.Lines())
//
// Every ratio comes from rounds that alternate within one run, ours and the ceiling,
// in an order that is swapped from round to round. Both sides use the same directory,
// file size, depth and block size, with O_DIRECT. Without fio a plain loop of pread
// and pwrite takes its place, and Result.Ceiling says so.
//
// The host tier has room for one round, so that no round is served from memory. Each
// round checks the pool's counters: a round that did not do its I/O is an error.
// Millions of registered blocks are made without writing them: the slot table gets
// sealed records of blocks of zeros, and their extents are holes.
//
// Run owns its directories and processes; none is left when it returns. A manager
// that loses a block or serves other bytes fails the run. Nothing in this package is
// safe for concurrent use. docs/benchmarks.md has figures.
package disk
