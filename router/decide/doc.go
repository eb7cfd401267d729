// Package decide makes the router's decision: hash the prompt, match the index, query the
// shared cache, choose a worker, book the request.
//
//	r, err := decide.New(decide.Options{Index: x, Scheduler: s, BlockSize: blockSize})
//	m, err := r.FindBestMatchDetails(ctx, &decide.Query{ID: "r1", Tokens: tokens, UpdateStates: true})
//	err = r.MarkPrefillCompleted("r1") // at the first token
//	r.Free("r1")                       // at the end
//
// A Router opens no connection, follows no publisher and reads no environment. The caller
// keeps the index up to date.
//
// The Router queries the index and the shared cache at the same time. The failure of a shared
// cache costs only its credit. A request waits only in the scheduler's queue, until its
// context ends.
//
// Without events (use_kv_events off) each booked decision is a prediction: the prompt is on
// the chosen worker's device for router_ttl_secs. With router_predicted_ttl_secs predictions
// bridge the time until events arrive.
//
// Ownership: a Query must not change until the call returns. Index, scheduler and shared
// cache belong to the caller and outlive the Router. Close drops the predictions.
//
// Every method may be called from any goroutine. A query to the shared cache has a goroutine
// of its own. The decision waits for its answer or for the timeout.
package decide
