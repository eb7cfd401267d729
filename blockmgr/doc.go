// Package blockmgr keeps the KV blocks of one node in host memory and on disk:
// it decides what is stored, where, for how long, and who may touch which slot.
//
// A Manager owns the tiers and gives each namespace a Pool. A session asks its
// pool in two ways:
//
//	Grant ── engine copies ──► Commit ──► sealed ──► written to disk
//	Lookup ─► pinned slots ──► engine copies ──► Unpin
//
// A program that embeds the manager may use handles in the place of slots: a
// MutableBlock is a granted slot that has yet to become a block, an
// ImmutableBlock a pinned one. See BlockState.
//
// # Guarantees
//
//   - A block is visible only after Commit or Register, or after its bytes were
//     read from disk and matched key and checksum. A copy that fails never
//     registers.
//   - Bytes are never moved by this package between engines and slots; only
//     between host and disk slots. A checksum is computed once, after Commit, and
//     carried along: a byte that flips later shows when the block is read from
//     disk, when it is first wanted after a restart, or when the scrubber comes by,
//     and is a miss. Live host memory is trusted.
//   - A pinned or granted slot is never given to anybody else, by this agent or
//     the next: grants, pins and sessions are on record before the call that makes
//     them returns. A slot's generation word changes when it is freed, before it
//     can be granted again.
//   - Residency changes reach the EventSink in the order in which they happened;
//     a removal precedes any later store of its key or grant of its slot.
//   - In each tier free + granted + staging + receiving + quarantined + active +
//     inactive = capacity, at any moment.
//   - Queues are bounded by slots, growth by the configured sizes, pins by a cap
//     per session, tries by a number, and whatever is dropped or refused has a
//     counter in Stats.
//
// # Slot states
//
//	free ─Grant─► granted ─Commit─► filled ─checksum─► sealed ─evicted─► free
//	  │              └─Abort─► free      (session gone) └─► quarantined ─► free
//	  └─Lookup─► staging ─read and verified─► sealed
//	                └─read does not end─► quarantined ─it ends─► free
//
// On disk, the write-behind is the one that is granted to and that seals. A
// disk slot whose bytes were bad or could not be read or written stays
// quarantined until the next start.
//
// # Restart
//
// Open finds both tiers as the last agent left them, however that ended. Sealed
// blocks are served again, host blocks after their bytes were compared once. Slots
// that a session of the dead agent was granted or had pinned stay out of use until
// Manager.Forget says that its processes are gone, or Pool.Resume that it is back
// and what of it it still uses (Former). All else is free. A slot whose record the
// death of the agent tore is out of use until the processes of every session of
// that time are gone, those that came back included. Memory that was damaged stays
// out of use for as long as it cannot be read. After a reboot the host tier is
// empty. A power loss may lose the blocks written last; it cannot make one wrong.
//
// # Eviction and offload
//
// A block leaves a tier when its slot is needed: least recently used first, among
// those without children in that tier, and never
// while it is pinned, kept, being sealed, written, read or looked up, nor for a
// block that comes after it in its own sequence: a prompt longer than a tier keeps
// its beginning there. Sealed blocks that the filter wants on disk are written
// behind, the highest priority first, then the oldest; when the queue is full, or
// the disk fails, they wait without being held. The engine never waits for any
// of it. The orders are those of package policy.
//
// Priority ages. A block of priority n is evicted as if it had been used n turnovers
// of its tier later than it was. A turnover is as many stored blocks as the tier may have
// slots; sixteen calls count as one block. So a block of priority 1 that nobody uses
// outlives those of priority 0 by one turnover, and confines nothing for longer.
//
// The host tier grows ahead of its demand: the grower keeps free what was asked for while
// the last extent was made, at least an extent and a 32nd of the tier, while no other pool uses
// that room. Until the tier has grown, a block without a free slot is refused and
// nothing is evicted for it; Lookup waits. Only a tier that is at its size, or that could not grow
// the last time, evicts.
//
// When a tier's size is used up, a pool that wants an extent gets one from
// another pool: from an unused one without blocks, from that which has been unused
// longest, or else from the one most over its share (policy.Giver). The extent whose blocks were used least
// recently goes whole, if nobody holds a slot of it, and the removal of its blocks
// is reported; its file is deleted and its memory taken out from under whoever
// still maps it; the newcomer gets a new file with a number of its own. A pool may
// lose all its extents and goes on without; one for which nobody gives anything
// opens with that tier empty, and tries again, at its sessions' next demand, when
// a pool has become unused.
//
// Pool.Retire closes a pool that nobody uses, so that namespaces may come and go for
// as long as the manager lives: its room and its place in the slot tables, which
// hold storage.MaxNamespaces, are free again. Where the place of one is taken by a
// namespace of an earlier agent that nobody has asked for yet, that one goes.
//
// # Ownership and concurrency
//
// The slots named in results belong to the session until Unpin, Commit, Abort
// or EndSession. Manager and Pool are safe for concurrent use. Each pool has
// one mutex; the sink is called with it held, so a sink sees one pool's events
// in order and two pools' concurrently. The mutex is not held during I/O,
// checksums or the making of extents, and neither is Manager.mu, so that Stats
// and Pools wait for none of them. Manager.mu, and the mutexes of two pools,
// are never held together. Lock order: a place's making, which serialises the
// opening and retiring of one namespace; then writes.flushing, while records go to disk; then
// Manager.mu or one Pool.mu; then, from Pool.mu, the breaker's, the session
// table's, and whatever filter and sink take.
//
// # Failure
//
// A bad read is tried once more and then a miss, a failed write is tried at two
// other places and then a block that is not on disk, a full tier a refused grant.
// A read that does not end is given up after Config.IODeadline; its host slot is
// out of use until the kernel is done with it. A disk that fails five times in a
// row, or stalls, is left alone for a while (breaker): pools go on with what is in
// host memory, and try the disk again now and then, with one block. A disk that only
// refuses writes is still read. A slot that cannot be written goes into quarantine
// when writes to other slots work. While none does, each try goes to another slot. A
// block that cannot be read is dropped when reads of other blocks work. A disk that does not answer when
// the manager or a pool opens, or when a tier grows, holds nobody up for longer than
// the deadline: the disk tier joins later, extent by extent, and nothing is written
// to it before it is whole (Stats.DiskJoining). Host memory that is damaged
// costs the slots in it, never the copy on disk that was read or written through
// it.
package blockmgr
