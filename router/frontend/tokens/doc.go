// Package tokens turns the prompt of a request into the token ids that the engine will see.
//
// [Source.Tokens] takes the first of these that the request and the servers allow:
//
//  1. token ids in the body: exact;
//  2. the render routes of a render server, or of a worker that has them: exact;
//  3. POST /tokenize of a worker: exact where it renders as the engine does, else
//     approximate with a reason;
//  4. nothing, with a reason.
//
// docs/front-door.md has the routes, and what /tokenize of vLLM does not render.
//
// Answers are cached by a SHA-256 of the model, the route and the members that decide the
// tokens, up to a bound of bytes. Failures are not cached. Requests with one text share one
// call, which goes on when the requests that wait for it go away. A call has a timeout. When
// the first server fails or is slow, a second one is asked. Calls at one time and bytes of
// an answer are bounded.
//
// A failure is no error: the Prompt has no tokens and says why, and Stats counts it by kind.
// The error of Tokens is that of the caller's context.
//
// A Source may be used from any goroutine. Close ends its calls and waits for them.
package tokens
