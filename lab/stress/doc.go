// Package stress is a metamorphic test of the block manager: streams of random
// operations run under many configurations, over faults of the disk, agents that
// are closed and killed, losses of power and bits that flip, and every block that
// is served has the bytes that were committed, or is a miss.
//
// # What runs
//
// A stream is drawn from a seed before anything runs: engines are granted slots
// and fill them, commit and abort, look blocks up, keep them pinned, die with
// workers that go on writing, come back to a new agent and resume; somebody
// prefetches, keeps, resets and closes pools; agents end in good order, or at once (nothing that
// was under way reaches the disk, engines go on), or with the whole machine (what
// was not synced is dropped or torn by sector, memory is gone). While no agent
// runs, bits are flipped in host memory, in disk extents and in slot records. Each
// stream runs under each of the variants. One goroutine drives a stream; the
// manager's own goroutines make it different each time, so a seed selects the
// operations, the faults and the losses, but not the moments at which they meet.
//
// # Which bytes are right
//
// The content of a block is a function of its key and of a nonce, the number of
// the operation that filled it. So a commit has the same content under every
// configuration, each copy says of itself which commit it is, and what is compared
// with its commit is compared with all the other configurations. (Engines promise
// equal bytes for equal keys. Breaking that promise here is what makes the wrong
// life of a block visible.) Then, for the copies of one block:
//
//   - A host copy made by a commit holds that commit and no other.
//   - A copy on disk holds what the host copy that it was written from held, and a
//     host copy read from disk what the disk copy held. The two need not be the same
//     commit: a block that cannot be read from disk now may be stored again.
//   - A host copy that a new agent finds holds what it held when the old one ended:
//     records of host memory are never late.
//   - A disk copy that a new agent finds after a close in good order, on a disk
//     without faults, holds what it held then. After anything else it may hold any
//     commit that a disk copy of the block ever held, because the record that said
//     that an older one is gone may have been lost. Its bytes must be that commit,
//     whole; and from the first time that it is served it stays the same one.
//
// All else is wrong: bytes of another key, of a commit that was aborted, of one
// that this copy cannot be, or of no commit. The ledger has these rules; it learns
// from the manager's events which copies there are.
//
// # What else is checked
//
//   - No slot is granted that anybody still holds: a session, one whose workers have
//     not exited, one of an earlier agent that was neither forgotten nor resumed.
//     Bytes that an engine has written or has pinned stay as they are until it lets
//     go. A slot's generation grows with every grant.
//   - Over a close in good order without faults no block is lost.
//   - In each tier the states of the slots add up to its capacity, and what the
//     events said is what Dump shows: now and then, and before and after each
//     restart.
//   - No operation takes longer than a minute.
//   - A negative control runs the same stream and flips a bit of each block right
//     after the check has verified it. A run whose check misses one is blind, and fails.
//
// # Ownership and failure
//
// Run owns the directories that it makes and everything in them; they are gone
// when it returns. It may be called several times at once. The first failure ends
// the run; its error names the seed, the configuration, the operation, and for a
// wrong byte the key and the commits. A stream that hangs cannot be ended: Run
// writes the stacks of all goroutines and returns without it.
package stress
