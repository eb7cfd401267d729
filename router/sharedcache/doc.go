// Package sharedcache asks a shared KV cache which blocks of a prompt it holds. A
// shared cache is a store off the nodes that every worker can load from. The router
// credits a worker for the blocks that the store has beyond the worker's own prefix.
//
// Cache is the question. Client asks a service over HTTP:
//
//	POST /check_blocks  {"block_hashes":[…]}  →  {"ranges":[[0,2],[3,4]]}
//
// The question has one number for each full block of the prompt: the SequenceHash
// under the request's cache namespace. The answer has half-open ranges of positions.
// Package sharedcachetest has such a service in memory.
//
// Failure: an answer that is late, too large or malformed is an error, and costs the
// request only the credit. After five failures in a row a Client asks once a second
// until the service answers, so that a hanging service does not delay every request.
//
// Every method may be called from any goroutine. No goroutine outlives a call,
// except for idle connections; Close closes them.
package sharedcache
