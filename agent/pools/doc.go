// Package pools opens a pool of blocks for each namespace, admits namespaces, and retires
// pools that nobody uses.
//
//	set, err := pools.Open(cfg, hub, log)
//	pool, stream, err := set.Open(&namespace, func(p *blockmgr.Pool) error {
//		return p.BeginSession(id, process)
//	})
//
// # Guarantees
//
// A namespace has a pool only where the node has room for it: every tier holds at least one
// of its blocks, and memory and disk space suffice for what the namespace adds. A node has
// at most MaxPools pools. Where there is no room for one more, Open retires a pool without
// sessions: one without blocks first, else the one unused for longest. Sessions that need a
// pool which another session is opening wait for that, and share its result. A refused
// namespace leaves no pool, no stream and no feed.
//
// # Parts
//
// Set owns the block manager, the entries of the pools and the admission. Each entry owns the
// event stream of its pool, which package events publishes. admission compares the tiers
// with what the node has; it measures file systems in the background, so that one that hangs
// hangs nothing else.
//
// # Locks
//
// Set.mu guards the entries and is held for a look at them: no pool and no stream is called
// under it. admission.checking comes before admission.mu.
//
// # Failure
//
// A refusal that may be retried says that all pools are in use. A pool whose disk does not
// answer keeps its entry; who waits for its end is refused after two seconds.
package pools
