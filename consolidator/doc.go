// Package consolidator turns what engines and the pool say about their blocks
// into one gap-free, tier-true stream of router events per owner.
//
// A Stream is the truth about one owner (a worker rank, or a pool): which
// blocks it holds in which tiers, counted by reference. It makes the events,
// numbers them and keeps the digest. A Rank feeds one worker rank's Stream from
// the engine's ZMQ publisher: it follows the sequence, repairs gaps by replay,
// and translates the engine's hashes to SequenceHashes.
//
// What a Stream guarantees, at any moment and to any observer of its events:
//
//   - Ids run from 1 without holes, in the order in which the sink sees them.
//   - A block is stored once per tier, however often it was announced, and
//     removed when the last announcement is taken back.
//   - Status and Snapshot belong together: the digest and the dump are those of
//     the state after the event id they come with.
//
// What a Rank guarantees: the Stream never claims what the engine's events do
// not prove. Every batch is applied exactly once and in order, or the loss is
// known. A loss that replay cannot repair means that the engine's state is
// unknown: any block we knew may have been evicted in the batch we missed. Then
// the stream is cleared, its health becomes degraded, and it goes on with what
// is announced from there. Blocks whose parent was announced before the loss
// are dropped as unknown_parent, because their place in a sequence cannot be
// known. Health returns to exact when the engine restarts, or drops its whole
// cache and has never announced blocks of another tier. Blocks of a LoRA adapter
// that the engine numbers but does not name (vLLM did before 2026) are dropped as
// unnamed_lora: without the name they would be taken for the base model's, and a
// wrong hit is worse than a miss.
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
// Two announcements of one block in one tier count twice: engines do cache a
// block twice, and evict it twice, when two requests compute or load the same
// content at once. vLLM can also be asked, per request, to report a prefix that
// it holds already (kv_cache_report_mode=full); no removal matches such a report,
// and nothing in it tells it from a second copy. RankConfig.FullReports says that
// requests do that; then a run of blocks that starts at the root does not count
// what is resident again. It is off by default, because there a second copy would
// be forgotten with the first.
//
// Concurrency: a Stream may be used from any goroutine; one lock guards it. The
// sink is called under that lock, so the order is stream lock, then the sink's
// own locks, and a sink must never call back. A Rank's Run owns its sockets in
// one goroutine; Stats may be called from anywhere.
//
// Failure: no input makes a Rank stop. Frames and events that cannot be used
// are counted by reason and logged at most once a second. Run returns only when
// its context ends or its sockets cannot be made.
package consolidator
