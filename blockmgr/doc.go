// Package blockmgr keeps the KV blocks of one node in host memory and on disk:
// it decides what is stored, where, for how long, and who may touch which slot.
//
// A Manager owns the tiers and gives each namespace a Pool. A session asks its
// pool in two ways:
//
//	Grant ── engine copies ──► Commit ──► sealed ──► written to disk
//	Lookup ─► pinned slots ──► engine copies ──► Unpin
//
// # Guarantees
//
//   - A block is visible only after Commit, or after its bytes were read from
//     disk and matched key and checksum. A copy that fails never registers.
//   - Bytes are never moved by this package between engines and slots; only
//     between host and disk slots. A checksum is computed once, after Commit, and
//     carried along: a byte that flips later shows when the block is read from
//     disk, and is a miss. Live host memory is trusted.
//   - A pinned or granted slot is never given to anybody else. Its generation
//     word changes when it is freed, before it can be granted again.
//   - Residency changes reach the EventSink in the order in which they happened;
//     a removal precedes any later store of its key or grant of its slot.
//   - In each tier free + granted + staging + receiving + quarantined + active +
//     inactive = capacity, at any moment.
//   - Queues are bounded by slots, growth by the configured sizes, pins by a cap
//     per session, and whatever is dropped or refused has a counter in Stats.
//
// # Slot states
//
//	free ─Grant─► granted ─Commit─► filled ─checksum─► sealed ─evicted─► free
//	  │              └─Abort─► free      (session gone) └─► quarantined ─► free
//	  └─Lookup─► staging ─read and verified─► sealed
//
// On disk, the write-behind is the one that is granted to and that seals. A
// disk slot whose bytes were bad or could not be read or written stays
// quarantined until the next start.
//
// # Eviction
//
// A block leaves a tier when its slot is needed, least recently used first
// among those without children in that tier, and never while it is pinned,
// being sealed, written, read or looked up, nor for a block that comes after it
// in its own sequence: a prompt longer than a tier keeps its beginning there.
//
// When a tier's size is used up, a pool that wants an extent gets one from
// another pool: from that which has been unused longest, without sessions,
// watchers or work under way. Its highest extent goes with all its blocks, whose
// removal is reported; its file is deleted and its memory taken out from under
// whoever still maps it; the newcomer gets a new file. The only extent of a pool
// goes just to a pool that has none. A pool may lose all its extents and goes on
// without; one for which nobody gives anything opens with that tier empty, and
// tries again, at its sessions' next demand, when a pool has become unused.
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
// opening of one namespace; then Manager.mu or one Pool.mu; then, from Pool.mu,
// whatever the sink takes.
//
// # Failure
//
// A bad read is a miss, a failed write a block that is not on disk, a full tier
// a refused grant. A pool goes on without its disk. Host memory that is damaged
// costs the slots in it, never the copy on disk that was read or written through
// it. After a restart of the
// agent the host tier is cold and the disk tier warm: its sealed records are
// taken over and their bytes verified when first read. A power loss may lose
// the blocks written last; it cannot make one wrong.
package blockmgr
