// Package control makes the operators' listener. It serves requests that change the state of an
// agent or a router, and dumps of the whole state. Ports for routers, clients and metrics must
// not serve these requests.
//
//	l, err := control.Listen(control.DefaultPath("router-8090"))
//	server := &http.Server{Handler: control.Operators{Tokens: tokens, Log: log}.Handler(mux)}
//	err = server.Serve(l)
//
//	client, base, err := control.Client("/run/blockyard/router-8090.sock")
//	resp, err := client.Get(base + "/v1/dump")
//
// # Guarantees
//
// An address is the absolute path of a Unix socket, the same behind "unix:", or
// HOST:PORT. A socket has mode 0600 from its first moment: only its own user and root connect. A
// TCP port has no such protection: without Tokens every client that reaches it may use it.
//
// Operators logs one line for each call that may change the state, also one that is refused or
// panics: who, what, which result. Of refused calls it logs at most 30 in a minute. No line has a
// token, and none has the body of a request: a handler adds with About what may be told. A line has
// at most about 1,700 bytes of the call. HandlerBeside also serves files that everybody may have.
//
// A Guard refuses requests that a browser sends on behalf of another site and that may change
// the state, also by a host name that was made to point at the loopback address or at the
// forwarded port of a socket (DNS rebinding). Protect, for operators, refuses such a name for
// every request. Client sends localhost to a socket.
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
