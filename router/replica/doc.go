// Package replica shares the bookings of routers, so that each counts the load of all.
//
//	s := replica.New(replica.Options{Bus: nats, Mark: mark})
//	journal := s.Open(model)            // load.Options.Journal of the model's account
//	s.Join(model, scheduler)            // bookings of other routers go there
//	go s.Run(ctx)
//	found, err := s.Forward(ctx, &mark) // a mark that came to the wrong router
//
// A router is the only writer of its bookings. It numbers them, and sends each change to all others:
// booked, progress, ended. Messages of a model are numbered too. A receiver applies them in that order,
// and a booking once, by router and number.
//
// Core NATS loses messages. A receiver finds a loss by a missing number, or by the state that each
// router sends every half second: the last number, and count and digest of its bookings. Then it asks
// for all bookings of the router, page by page, while messages go on. A new router learns of a peer by
// the peer's next message, and asks the same question. docs/replica-sync.md describes the messages.
//
// State is that machine, without input and output. Sync runs it over a Bus. No router keeps bookings of
// others on disk, and none answers for another.
//
// Failure: the bookings of a router that is silent for 3 seconds are dropped. When it is heard again it
// restates them. A restarted router has a new name, so that its earlier bookings expire and are not
// counted twice. Without a bus each router counts its own bookings.
//
// Bounds hold at the receiver, whatever others send: 1 MiB a message, 256 routers a model, 64 early
// messages a stream, 64 MiB of them in all, 65,536 waiting changes, 16 questions. Each drop has a counter
// in Stats. docs/replica-sync.md lists them.
//
// State is safe for concurrent use. Its lock comes before a scheduler's, and a journal's after it.
// Run's goroutines end before Run returns.
package replica
