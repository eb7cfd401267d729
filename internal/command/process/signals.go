package process

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
)

// Hangups are the SIGHUPs of this process. A SIGHUP ends the process's context, unless a command has
// taken SIGHUPs to reload its settings. The SIGHUP of a terminal that has closed always ends the
// context.
type Hangups struct {
	signals chan os.Signal
	taken   atomic.Bool
	// reload is filled by a SIGHUP that a command has taken.
	reload chan struct{}
	// terminals are the standard files that were terminals at the start.
	terminals []*os.File
}

// Take returns a channel that is filled at a SIGHUP. From then on SIGHUP does not end the context. A nil
// receiver returns nil.
func (h *Hangups) Take() <-chan struct{} {
	if h == nil {
		return nil
	}
	h.taken.Store(true)
	return h.reload
}

// run passes signals on until ctx ends. end ends ctx.
func (h *Hangups) run(ctx context.Context, end func()) {
	defer signal.Stop(h.signals)
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.signals:
		}
		if !h.taken.Load() || h.terminalClosed() {
			end()
			return
		}
		select {
		case h.reload <- struct{}{}:
		default: // a reload is due already
		}
	}
}

// terminalClosed reports whether a terminal of the process has closed. The kernel disconnects a terminal
// before it sends SIGHUP.
func (h *Hangups) terminalClosed() bool {
	return slices.ContainsFunc(h.terminals, func(f *os.File) bool { return !IsTerminal(f) })
}

// SignalContext returns a context that ends at the first SIGINT, SIGTERM or SIGHUP: a terminal that
// closes stops a process as orderly as a supervisor does. A command may take SIGHUP for itself. Under
// nohup SIGHUP stays ignored. After the first signal signals have their default effect again, so that a
// second one kills a process that is slow to drain. The caller must call the returned function when it
// is done.
func SignalContext() (context.Context, *Hangups, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	h := &Hangups{signals: make(chan os.Signal, 1), reload: make(chan struct{}, 1)}
	if signal.Ignored(syscall.SIGHUP) {
		return ctx, h, stop
	}
	h.terminals = slices.DeleteFunc([]*os.File{os.Stdin, os.Stdout, os.Stderr}, func(f *os.File) bool { return !IsTerminal(f) })
	signal.Notify(h.signals, syscall.SIGHUP)
	go h.run(ctx, stop)
	return ctx, h, stop
}
