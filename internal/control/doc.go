// Package control makes the listener that operators use: it serves what changes
// the state of an agent or a router, and what exposes all of it. Ports that
// routers, clients and metrics use must not serve those.
//
//	l, err := control.Listen(control.DefaultPath("router-8090"))
//	server := &http.Server{Handler: control.Protect(mux)}
//	err = server.Serve(l)
//
//	client, base, err := control.Client("/run/blockyard/router-8090.sock")
//	resp, err := client.Get(base + "/v1/dump")
//
// # Guarantees
//
// An address is the absolute path of a Unix socket, the same behind "unix:", or
// HOST:PORT. A socket has mode 0600 from its first moment: only its own user
// and root connect. A TCP port has no such protection and asks for no
// password. Whoever reaches it may use it.
//
// RefuseCrossSite refuses what a browser sends on behalf of another site and
// may change something. Protect refuses, in addition, a host name that was made
// to point at the loopback address.
//
// # Concurrency and ownership
//
// Every function may be called from any goroutine. The caller closes a
// listener; that removes its socket file.
//
// # Failure
//
// The socket file of a process that was killed is replaced. A socket that
// another process serves on, and a file that is no socket, are errors. Errors
// name the address.
package control
