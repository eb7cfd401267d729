// Package diskio moves the blocks of a pool between host memory and disk, and computes
// and compares their checksums.
//
// A Mover belongs to one pool. The pool calls it under its lock and runs its loops:
//
//	m := diskio.NewMover(options, pool, &mu, slots)
//	go m.RunSealer()   // checksums of committed blocks
//	go m.RunWriter()   // sealed blocks → disk, in batches
//	go m.RunReader()   // disk → host slots, verified
//	go m.RunScrubber() // compares what is stored, at a fixed rate
//	m.Offer(ref, slot) // a sealed block may go to disk
//	f := m.Read(key, ref); <-f.Done
//
// # Guarantees
//
//   - A block that was read becomes visible only when its bytes match key and checksum.
//   - A record says granted before the bytes of its slot are written, and sealed after.
//   - One read serves all lookups of a block. A read that does not end is given up after
//     the deadline, and its host slot stays out of use until the kernel returns.
//   - What waits for the disk is bounded by slots. What finds the queue full or the disk
//     failing is offered again and holds no slot meanwhile.
//
// # Ownership and concurrency
//
// Each loop takes work under the pool's lock, does it without, and takes the lock again
// to finish it: takeRead, finishRead or abandonRead; takeSeal, finishSeal or
// finishVerify; takeWrites, finishWrites; takeDirty, redirty. No function lets go of a
// lock that its caller took. All pools of a disk share one Health, which has locks of
// its own.
//
// # Failure
//
// Faults tell a bad slot from a bad disk: a slot that cannot be written is quarantined
// while other slots work, a block that cannot be read is dropped while others can. Five
// failures in a row, or a stall, open a Breaker: nobody uses the disk, but for one try
// now and then.
package diskio
