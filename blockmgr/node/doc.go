// Package node opens the block manager of a node. An agent and a program that embeds the
// manager (blockmgr/kvbm) both start here.
//
//	manager, space, err := node.Open(&node.Tiers{Config: blockmgr.Config{HostDir: …, HostBytes: …}}, log)
//	pool, err := manager.Pool(namespace)
//
// Tiers is what flags and KVBM's variables fill. A model comes later: HELLO brings it to an
// agent, the caller to an embedder.
//
// Tiers that the node has no room for are refused before a file is made. Files of an earlier
// manager count as room. The caller owns the manager and closes it.
package node
