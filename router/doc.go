// Package router sends each request to the worker that can serve it soonest. It
// follows the residency streams of all publishers, keeps an index of which
// blocks lie in which tier of which node, and keeps account of the requests it
// sent out.
//
// Parts: Router is the facade and the only type most callers need. A Transport
// brings the publishers' messages: NATS is one, HTTP follows agents without NATS, and
// Registry joins transports and makes workers known that no agent speaks for. feedState is the rules of one
// stream, feedSet all streams and who is a worker. Model is what is kept for one model,
// keyed by name and block size, and Models finds it for a request. Package decide makes the decision,
// over the blocks of package index, the choice and the account of packages schedule
// and load, and, for scores in milliseconds, what package estimate has learned.
// Handler offers it all over HTTP, ServeNATS the routing over NATS.
//
// Guarantees: the index holds what a publisher announced up to its cursor, or
// the router says so. Lost messages are found by their ids, or by the next
// announcement when they were the last; what is missing is asked for, and until
// it is there every answer says QualityDegraded. A digest that differs with
// nothing missing leads to a dump that replaces what the owner had. An owner
// whose publisher says goodbye, is followed by another one, or falls silent is
// forgotten with its blocks. A worker's requests and measures stay for a while, because
// its engine may go on without its agent. While a transport itself is
// disconnected nobody is forgotten whom it announced last, and only those count as
// degraded. A cursor that stays ahead of what its publisher announces leads to a
// dump too. A router may start before its transport: it serves, knows nobody, and joins when
// there is one.
//
// With Options.Snapshots a router saves what it knows and begins with what was
// saved last. Nobody is sent to an owner of a snapshot before its publisher is
// heard of, and then only what came since is asked for, or read on from a
// transport that keeps messages.
//
// A caller that sends requests by its own choice tells the account of them with
// AddRequest, so that the choices made here take them into account; over HTTP
// there is no such call.
//
// Concurrency: one goroutine (Run) applies messages; queries run in a bounded
// number of others and hand their results back to it. Decisions are made on the
// caller's goroutine, from any number of them; they read the index without waiting
// for who changes it, and then take a short lock on the account. The feeds' lock comes
// before that of Models, which comes before the scheduler's, and that before the index's
// writer, the cards and the estimator.
//
// Failure: nothing in here ends the process. A decision fails when there is no
// worker, when its request id is in use, or when its input is bad; every other
// trouble lowers the quality of the answer and is counted.
package router
