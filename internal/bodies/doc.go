// Package bodies bounds the memory of request bodies.
//
//	budget := bodies.New(128<<20, 1<<30, new(bodies.Counters))
//	body := budget.Wrap(request.Body, client, readBy)
//	defer body.Done()
//	// read body
//	body.Decoded()
//
// A client may use as many bytes as it leaves free: half alone, a third beside one other
// client. When a client's share or the budget is used up, the slowest upload of that client
// or of a larger one ends with ErrSlow and its bytes go to the next body. Without such an
// upload the next body ends with ErrBusy. The first 16 KiB of each body cost nothing.
//
// A body that arrives more slowly than LeastRate ends with ErrLate, also when there is room: a
// client must not hold its place for ever.
//
// A Budget may be used from any goroutine, a Body from one.
package bodies
