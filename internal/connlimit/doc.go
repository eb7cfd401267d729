// Package connlimit bounds the connections of a server, in all and by client address.
//
//	l = connlimit.Listen(l, connlimit.Limits{All: 16384, PerAddress: 256})
//	server := &http.Server{ConnState: connlimit.State}
//
// When a new connection would be one too many, the connection that has been idle longest
// is closed for it: of the same address for PerAddress, of any for All. A connection is
// idle between requests and before its first one, so that idle clients cannot keep others
// out. Without an idle connection the new one is closed. With Limits.KeepIdle the new one
// is always the one that is closed.
//
// When the process has no file descriptor left, Accept closes the longest idle connection
// too and returns the error; net/http then tries again.
//
// State finds its connection through TLS. A Listener may be used from any goroutine.
package connlimit
