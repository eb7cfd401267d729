// Package sharedcache asks a shared KV cache which blocks of a prompt it holds: a
// store off the nodes that every worker can load from, such as a pool of memory or
// an object store. The router credits a worker for what the store has beyond the
// worker's own prefix.
//
// Cache is what the router asks. Client asks a service over HTTP:
//
//	POST /check_blocks  {"block_hashes":[…]}  →  {"ranges":[[0,2],[3,4]]}
//
// with one number for each full block of the prompt, its SequenceHash under the
// request's cache namespace, and half-open ranges of their positions in the answer.
// Package sharedcachetest has such a service in memory.
//
// Failure: an answer that is late, too large or not in order is an error, and an
// error costs the request nothing but the credit. After five in a row a Client
// asks the service once a second until it answers, so that a store that hangs does not
// delay every request by the timeout.
//
// Concurrency: everything is safe for concurrent use. Nothing here starts a
// goroutine that outlives the call, apart from idle connections; Close ends them.
package sharedcache
