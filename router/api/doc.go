// Package api serves a router: decisions over HTTP and NATS, inspection, metrics and
// what operators change.
//
// New returns the API of a router. Serve answers clients on a listener, ServeControl
// operators, and ServeNATS requests over NATS. docs/router-api.md describes paths,
// bodies and headers.
//
// Bounds: requests that are being routed, bytes of bodies that have arrived, the share
// of one client in them, and the time that a request over NATS waits. A reply that cannot
// be delivered takes its booking back.
//
// Methods may be called from any goroutine. Errors name the field, the value and the
// range; the process goes on.
package api
