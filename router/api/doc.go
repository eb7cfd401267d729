// Package api serves a router: decisions over HTTP and NATS, inspection, metrics and changes
// by operators.
//
// New returns the API of a router. Serve answers clients on a listener. ServeControl answers
// operators. ServeNATS answers requests over NATS. docs/router-api.md describes paths, bodies
// and headers.
//
// Bounds: requests that are being routed, bytes of their bodies, the share of one client in
// the bytes, and the wait of a request over NATS. The booking of an undelivered reply is
// freed.
//
// Methods may be called from any goroutine. Errors name the field, the value and the
// range; the process goes on.
package api
