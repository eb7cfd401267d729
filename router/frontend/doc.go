// Package frontend is the front door: clients of the OpenAI API come in, and each request
// goes to the worker that the router chooses.
//
//	door, err := frontend.New(frontend.Options{Router: r, Workers: directory, Tokens: prompts})
//	err = door.Serve(ctx, listener)
//
// A request is read, its prompt becomes token ids, the router decides and books, and the
// body goes to the worker. The answer comes back as the worker sends it. Package openai
// says what is read of a body and what is edited, package tokens where token ids come
// from, package workers who takes requests. docs/front-door.md describes routes, headers
// and errors.
//
// Guarantees:
//
//   - A booking is freed exactly once, whatever ends the request: the answer, the client,
//     the worker, a deadline or a panic.
//   - Nothing of an answer reaches the client before its first data event or the end of
//     an answer that is not streamed. Until then a failed request is sent to one other
//     worker. After that the failure is passed on.
//   - A client that goes away cancels the request at its worker.
//   - A request that was at two workers when they died is refused for ten minutes.
//   - A body reaches the worker as the client sent it, but for the documented members.
//
// Bounds: requests in progress, size of bodies, answers and events, the remembered
// requests. A slow client holds its own goroutine and connection, and is cut off.
//
// Ownership: the caller closes nothing; Serve waits for its requests. The router, the
// directory and the token source belong to the caller and outlive the Door.
//
// Failure: an answer with an error has OpenAI's shape and says whose fault it is. The
// process goes on.
package frontend
