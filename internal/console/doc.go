// Package console is the web console of an agent and a router: a page in the browser that shows
// what they do.
//
//	h := console.NewHistory(func() []console.Value { return []console.Value{{"decisions", decisions()}} })
//	go h.Run(ctx)
//	console.Mount(mux, console.Router, version)
//	mux.Handle("GET /v1/history", h)
//
// Mount serves the page, which is embedded. The page asks the same listener for its data: the JSON
// paths of the agent or the router. A History keeps the last minutes, so that a page that
// opens shows them at once.
//
// # Guarantees
//
// The page has no data of its own: a listener with tokens may serve the page without one, and the
// page asks the operator for the token. The page loads nothing from elsewhere and runs no inline
// script; its Content-Security-Policy says so. The page changes nothing at agent and router.
// Answers have an ETag, so that a browser loads a file once.
//
// # Bounds and ownership
//
// A History has at most 180 points, one every five seconds. Run ends with its context. Handlers
// may be called from any goroutine.
package console
