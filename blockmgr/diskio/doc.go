// Package diskio moves the blocks of a pool between host memory and disk.
//
// A Breaker keeps a failing disk out of the way: after five failures in a row
// nobody uses the disk, except for one try now and then. A Pacer limits the bytes
// that all scrubbers of a node read. RefQueue and WriteQueue order the slots that
// wait for a worker, BusyTime measures how long the disk works.
//
// # Ownership and concurrency
//
// Breaker and Pacer are safe for concurrent use, and all pools of a manager share
// them. The queues and BusyTime belong to one pool, whose mutex guards them.
//
// # Failure
//
// An operation that fails or does not end is reported to the Breaker by its caller.
// The Breaker never blocks and never fails.
package diskio
