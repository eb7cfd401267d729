// Package drain ends HTTP servers without cutting requests off.
//
//	err := drain.Serve(ctx, &http.Server{Handler: h}, listener, 30*time.Second, errStopping)
//
// The end of ctx closes the listener, and lets requests go on for the given time. Requests
// that still run then see the end of their own context, whose cause is the given error,
// and have one more second to answer. After that their connections are closed.
package drain
