// Package pools opens a pool of blocks for each namespace, admits namespaces, and retires
// unused pools.
//
//	set, err := pools.Open(nodeName, tiers, hub, log)
//	pool, stream, err := set.Open(&namespace, func(p *blockmgr.Pool) error {
//		return p.BeginSession(id, process)
//	})
//
// # Guarantees
//
// A namespace has a pool only where the node has room for it: every tier holds at least one
// of its blocks, and memory and disk space suffice for the namespace's share. A node has at
// most MaxPools pools. When there is no room for another pool, Open retires a pool without
// sessions: one without blocks first, else the one unused for longest. Sessions that need the
// same pool wait for the first of them to open it, and share the result. A refused namespace
// leaves no pool, no stream and no feed.
//
// # Parts
//
// Set owns the block manager, the entries of the pools and the admission. Each entry owns the
// event stream of its pool, which package events publishes. admission checks the namespaces'
// shares against the node. It measures file systems in the background, so that a hanging one blocks
// nothing else.
//
// # Locks
//
// Set.mu guards the entries. No pool and no stream is called under it. admission.checking comes
// before admission.mu.
//
// # Failure
//
// A retryable refusal says that all pools are in use. A pool whose disk does not answer keeps
// its entry; a session that waits for its end is refused after two seconds.
package pools
