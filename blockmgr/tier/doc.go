// Package tier keeps the slots of one pool: which slot of which tier has which block,
// in which state, and who uses it.
//
// A Set has the pool's tiers and the registry of their blocks:
//
//	ref := set.Alloc(set.Host)                                   // a free slot, or an evicted block's
//	set.Occupy(set.Host, ref, &block, storage.StateGranted, …)   // the slot is the block's
//	set.Fill(ref, &record)                                       // the block is visible
//	set.Seal(set.Host, ref, record)                              // its checksum is known
//	set.Drop(set.Host, ref, storage.StateFree)                   // the block leaves the tier
//
// # Guarantees
//
//   - In each tier free + granted + staging + receiving + quarantined + active +
//     inactive = capacity after every call. Check compares all counters with the slots.
//   - A slot's generation changes when the slot is freed, before it can be taken again,
//     and the generation word of a host slot is written first.
//   - Every change of residency reaches the Sink in order. A block is announced before its
//     children, and a block that is dropped before its turn is announced and removed at once.
//   - A slot that is pinned or held is never evicted, nor is a block with children in the
//     tier. A filled slot that is held keeps its block: eviction, resets and damage drop
//     sealed blocks only.
//
// # Ownership and concurrency
//
// A Set belongs to one pool, whose mutex guards it with everything in it. It has no lock
// and no goroutine. It does no I/O, except that it writes generation words and records in
// mapped memory. It calls the Sink with the pool's lock held.
//
// # Failure
//
// A host slot whose memory is damaged is quarantined and counted. A caller that breaks an
// invariant of a slot causes a panic.
package tier
