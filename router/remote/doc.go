// Package remote asks the index of another router, for routers that keep none (serve_indexer and
// use_remote_indexer).
//
//	served, err := remote.Serve(bus, lookup)          // at the router with the index
//	client := remote.NewClient(remote.Options{Bus: bus})
//	x := client.Index(model, blockSize, local)        // at the others: the decide.Index of a model
//	x.Match(&matches, locals, index.Continuation)
//
// The workers of an Index are those of the local index, which has no blocks. Match asks the routers that
// serve, one of which answers. docs/remote-indexer.md describes the messages.
//
// Guarantee: the quality of a match is that of its own answer. It is feed.Exact only when both routers know the
// same workers.
//
// Failure: a question that is refused, or not answered within 100 ms, gives no hits. Its quality is
// feed.Fallback, and a decision counts loads and predictions alone. After five questions in a row without an
// answer a client asks once a second.
//
// Bounds: a question has at most 65,536 blocks, and an answer 16,384 workers. A server answers one question
// at a time, and 1,024 wait for at most 100 ms. ServerStats and ClientStats count what is left out.
//
// Every method may be called from any goroutine. The package starts none.
package remote
