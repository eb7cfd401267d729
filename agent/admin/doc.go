// Package admin is the HTTP API of an agent: public requests that read, and operators'
// requests that change pools.
//
//	public := admin.Public{Pools: set, ...}
//	s := admin.NewServer(listener, public.Handler(), log)
//	c := admin.NewServer(socket, public.Control(operators), log)
//	err := s.Serve() // until s.Close()
//
// # Guarantees
//
// Public only reads: health, readiness, metrics, statistics, pools' status, the events over HTTP, and
// the web console. Control serves these paths too, except metrics and events. Control changes pools, sizes and limits, and
// lists their blocks; its listener is protected against requests from browsers and should be reachable by
// operators alone. Every body is bounded and every error is JSON with a field "error". A dump goes out in
// chunks: a slow reader holds up no pool. A block in use is never reset.
//
// # Ownership
//
// A Server owns its listener. The pools are the caller's and must be open until Close has
// returned. docs/operations.md shows each request with its answer.
package admin
