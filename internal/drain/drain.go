package drain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// answerTimeout bounds the time to answer requests whose context has ended.
const answerTimeout = time.Second

// Serve serves HTTP on l until ctx ends, and then closes l. Requests have the time patience
// to finish. The contexts of those that remain then end with the cause stopping. Serve sets
// server.BaseContext. The error is nil when ctx ended the server.
func Serve(ctx context.Context, server *http.Server, l net.Listener, patience time.Duration, stopping error) error {
	// Requests outlive ctx: end cancels them, and only after patience.
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	server.BaseContext = func(net.Listener) context.Context { return serving }
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		deadline := time.AfterFunc(patience, func() { end(stopping) })
		defer deadline.Stop()
		draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience+answerTimeout)
		defer cancel()
		if err := server.Shutdown(draining); err != nil {
			drained <- server.Close()
			return
		}
		drained <- nil
	})
	err := server.Serve(l)
	// stop returns true while ctx lasts: then Serve ended by itself.
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", l.Addr(), err)
	}
	return <-drained
}
