// Package consolidator turns what engines and the pool say about their blocks
// into one gap-free, tier-true stream of router events per owner.
//
// A Stream is the truth about one owner (a worker rank, or a pool): which
// blocks it holds in which tiers, counted by reference. It makes the events,
// numbers them and keeps the digest. A Rank feeds one worker rank's Stream from
// the engine's ZMQ publisher: it follows the sequence, repairs gaps by replay,
// and translates the engine's hashes to SequenceHashes. A Merged is what one
// worker rank can reach: its own blocks and those of its pool.
//
// What a Stream guarantees, at any moment and to any observer of its events:
//
//   - Ids run from 1 without holes, in the order in which the sinks see them.
//   - A block is stored once per tier, however often it was announced, and
//     removed when the last announcement is taken back.
//   - Status and Snapshot belong together: the digest and the dump are those of
//     the state after the event id they come with.
//   - No change waits for a consumer. A dump is made of a view of the table, for
//     which pointers to its chunks are copied under the lock; while it is made, a
//     change copies the chunk of 512 blocks that it changes. A rank that joins a pool
//     (Merged) copies one chunk at a time, takes in what has changed from a bounded
//     queue, and when it falls behind compares what it holds with the stream, again in
//     pieces of 512 blocks.
//
// What a Rank guarantees: the Stream never claims what the engine's events do
// not prove. Every batch is applied exactly once and in order, or the loss is
// known. A loss that replay cannot repair means that the engine's state is
// unknown: any block we knew may have been evicted in the batch we missed. If
// the engine can list what it has cached (RankConfig.Cached), the rank keeps what
// is listed, drops the rest and goes on; listed blocks that it does not know
// leave the stream degraded until they are announced again or removed. The list
// is a set: of a block that the engine has twice one copy is forgotten, so that
// the first eviction removes it, which is a miss and never a wrong hit. Stores that
// may be older than the list do not count again what it had: those that come until
// the queue of frames has been seen empty, and a second longer. When the list fails,
// the stream is cleared, what it had is kept aside, and the list is asked for
// again until it comes and what is in it is back. A batch with events that could
// not be decoded may have hidden a removal, and is settled by the list in the same
// way, ten seconds after the last list at the earliest; until then, and without
// one, the stream is degraded. An engine that has no list loses everything: the
// stream is cleared, its health becomes degraded, and it goes on with what is
// announced from there. Health returns to exact when the engine restarts, or drops
// its whole cache and has never announced blocks of another tier. Before the
// engine has been reached for the first time it is degraded. Blocks
// of a LoRA adapter that the engine numbers but does not name (vLLM did before
// 2026) are dropped as unnamed_lora: without the name they would be taken for the
// base model's, and a wrong hit is worse than a miss.
//
// Blocks whose parent is not known have no place in a sequence yet. They are
// parked, at most 16 MiB of them per rank, and stored as soon as the parent is,
// with everything that hangs on them; removals and clears reach them where they
// are. What is parked is not in the stream, so that nobody is sent to blocks that
// cannot be named. The stream is degraded while something has waited for more
// than a second. When the bytes are used up, the oldest goes and is dropped as
// unknown_parent; a loss drops all of it that is not in the engine's list.
//
// How a Rank tells a restart of the engine from a duplicate: a frame with a
// sequence number that was applied before is a duplicate only if its bytes are
// those that were applied; otherwise the engine counts anew. The last batches are
// remembered for that; a frame whose batch is forgotten is a duplicate if its
// number says that it came by replay before. Each replay asks
// for the last applied batch too and compares it, so that a restart is also
// found when the new engine has already overtaken the old number. The engine's
// last frames before a pause may be lost without a later frame to show it: the
// rank asks for what follows when the stream falls silent (tail probe). Without
// a replay endpoint a restart is seen only when the numbers go back.
//
// A rank's state survives its agent in a checkpoint file, meant for a tmpfs:
// blocks, counts, groups, what is parked, and the place in the engine's sequence.
// A rank that finds one begins with it, degraded, and asks for what has happened
// since; everything said above about duplicates, gaps and restarts holds as if it
// had been there all the time. Without replay the list says what is still there; an
// engine that has none leaves it degraded until the next frame continues the sequence,
// and lost if that does not. A file that is torn, of another version or about another
// rank, block size or RankConfig.Identity is ignored and counted. The tokens of blocks
// are not in it, nor is what is kept aside.
//
// Two announcements of one block in one tier count twice: engines do cache a
// block twice, and evict it twice, when two requests compute or load the same
// content at once. vLLM can also be asked, per request, to report a prefix that
// it holds already (kv_cache_report_mode=full); no removal matches such a report.
// The engine makes both from the same fields by the same function, so that
// nothing in an event, nor in its batch, tells them apart. RankConfig.FullReports
// says that requests do that; then a run of blocks that starts at the root does
// not count what is resident again. It is off by default, because there a second
// copy would be forgotten with the first. Loads through a connector need no such
// care: the engine announces what it has loaded, and evicts it, once.
//
// Tables: a block that a rank tracks costs at most 64 bytes, 38 in the Stream and
// 25 under the engine's hash, in memory without pointers; see dense. A Stream counts
// any number of references. A rank counts 4095 copies of one engine hash on the
// device, 255 in the host tier and 63 in the others. It drops an announcement beyond
// that as too_many_copies, which leaves the stream degraded: the block is removed
// before its last copy. Neither bytes nor events allocate anything per block in a
// steady state.
//
// Names: the adapters and salts of a rank's blocks have 64 MiB. Blocks beyond that
// are dropped as names_full.
//
// Concurrency: a Stream may be used from any goroutine; one lock guards it. The
// sinks are called under that lock, so the order is stream lock, then the sinks'
// own locks, and a sink must never call back nor wait. A Merged follows its pool from a
// goroutine of its own, outside the lock of the pool's stream. A Rank's Run owns its sockets and
// its table in one goroutine; Stats may be called from anywhere.
//
// Failure: no input makes a Rank stop. Frames and events that cannot be used
// are counted by reason, and the last events that could not be decoded are kept
// to be looked at; both are logged at most once a second. Run returns only when
// its context ends, or when its sockets cannot be made or fail: then the stream is
// empty and degraded.
package consolidator
