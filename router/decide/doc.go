// Package decide is the decision of the router from end to end: a prompt becomes
// block hashes, the index and a shared cache say who has which of them, the
// scheduler chooses a worker and books the request on it, and where workers tell
// nothing the choice itself is remembered.
//
// Router is that decision and nothing else: it opens no connection, follows no
// publisher and reads no environment. What it knows of workers comes from the index
// that it is given, which somebody else keeps up to date.
//
// The index and the shared cache are asked at the same time; a shared cache that
// fails costs its credit and nothing more. A request waits only where the scheduler
// queues it, and until the context of the call ends.
//
// Approximate mode: without events (use_kv_events off) each booked decision is taken
// to leave the prompt on the chosen worker's device for a while (router_ttl_secs).
// With router_predicted_ttl_secs the same happens beside the events, for the time
// until they arrive.
//
// Ownership: a Query is borrowed until the call returns. The index, the scheduler and
// the shared cache belong to the caller and outlive the Router. Close forgets the
// remembered decisions.
//
// Concurrency: a Router is safe for concurrent use. It has no goroutine besides the
// one that asks the shared cache, which each decision waits for.
package decide
