// Package indexer serves a router's index in the HTTP shapes of Dynamo's standalone KV
// indexer, so that clients of the indexer can ask the router.
//
//	x := indexer.New(indexer.Options{Router: r, Follower: engines})
//	http.Serve(listener, x.Handler())
//
// POST /register follows the ZMQ events of an engine rank, POST /unregister ends that.
// POST /query and /query_by_hash answer how many tokens of a prompt each worker of the
// router holds, those of agents and worker servers included. docs/router-api.md has the
// paths, and what differs from Dynamo.
//
// A routing group other than "default" is a model of its own, named MODEL:GROUP.
//
// Bounds: 8 MiB for the body of a query, 2 MiB for others; the follower bounds the ranks.
// A registration lasts until it is ended or the process ends. Server.mu is held while the
// follower is called. Methods may be called from any goroutine.
package indexer
