// Package selection serves a router's decisions in the HTTP shapes of Dynamo's selection
// service, so that clients of the service can ask the router.
//
//	s := selection.New(selection.Options{Router: r, Follower: engines, Registry: registry})
//	go s.Run(ctx)
//	http.Serve(listener, s.Handler())
//
// POST /workers tells of a worker. POST /select chooses one, POST /select_and_reserve books the
// request there too, and POST /reservations books a choice of before. docs/router-api.md has
// the paths, and what differs from Dynamo.
//
// A partition is a model in a routing group; see package shape. A choice may be any worker of
// the router that serves the partition. Workers that others announce are listed too.
//
// Bounds: 8 MiB for a body, maxWorkers for the registered workers, CacheLimits for choices that
// wait to be booked. A booking is one of the router's: it ends with its worker, by DELETE, or
// when the router expires it. Server.mu is held while the follower and the registry are called.
// Methods may be called from any goroutine.
package selection
