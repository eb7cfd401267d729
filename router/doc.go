// Package router sends each request to the worker that can serve it soonest.
//
//	r, err := router.New(router.Options{}, transport) // a source.Transport
//	go r.Run(ctx)
//	m, err := r.FindBestMatch(ctx, &router.Request{ID: id, Tokens: tokens, UpdateStates: true})
//	...                                               // send the request to m.Worker
//	r.MarkPrefillCompleted("", id)
//	r.Free("", id)
//
// A Transport of package source brings the publishers' messages. Package feed applies them
// to the index of a Model and repairs losses. Model holds the index, scheduler, decision
// and estimator of one model; Models finds the model of a request. Package decide makes
// the decision. Package api serves a Router over HTTP and NATS.
//
// Guarantees: a Match has the feed.Quality of the decision. The router keeps the workers of a
// disconnected source. A router may start before its transport: it has no workers until the
// transport connects. With Options.Snapshots it begins with the stored snapshot.
//
// A caller that chooses a worker itself books the request with Model.Decide's AddRequest, so
// that later decisions count its load.
//
// Concurrency: Run applies messages in one goroutine. A bounded number of goroutines query
// publishers. Decisions run on the caller's goroutine. They read the index without a lock and
// take a short lock to book. Lock order: feeds, Models, scheduler, then the index's writer,
// the cards and the estimator.
//
// Failure: a decision fails without a worker, with a request id in use, or with invalid
// input. Every other failure lowers the quality and is counted.
package router
