package front

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	maxIdleConnections = 15_000
	// maxKept is how much more memory than at its start the router may have in the end.
	maxKept = 32 << 20
	// dialers open connections at the same time.
	dialers = 32
)

// IdleOptions configure Idle.
type IdleOptions struct {
	// Connections is the number of idle connections, 1..15000.
	Connections int
	// Wait is the time from the end of the connections to the last look.
	Wait time.Duration
	// Programs must be set. Stub is the command whose process calls Serve.
	cluster.Programs
	Stub []string
	// Dir is the parent of the directory of logs.
	Dir string
	// Out gets the figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *IdleOptions) Validate() error {
	switch {
	case o.Connections < 1 || o.Connections > maxIdleConnections:
		return fmt.Errorf("connections %d: want 1 to %d", o.Connections, maxIdleConnections)
	case o.Wait < 0 || o.Wait > 10*time.Minute:
		return fmt.Errorf("wait %s: want 0s to 10m", o.Wait)
	}
	return nil
}

// Idle measures what idle connections of clients cost the router, and what is left of that
// afterwards. Every connection has had one answer. The error says that a connection or a request
// beside the idle ones failed, or that the router kept more than 32 MiB.
func Idle(ctx context.Context, o IdleOptions) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	dirs, err := cluster.MakeDirs("blockyard-bench-idle", o.Dir, "", 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dirs.Remove(err != nil)) }()
	s := cluster.NewSupervisor(dirs.Logs, nil)
	defer s.Stop(0)
	var stub Ready
	if _, err := s.StartReady(ctx, cluster.Spec{Name: "stub", Command: o.Stub}, &stub); err != nil {
		return err
	}
	var ready struct {
		Door string `json:"door"`
	}
	router, err := s.StartReady(ctx, cluster.Spec{Name: "router", Stage: 1, Command: []string{
		o.Product, "router", "--http=127.0.0.1:0", "--http-host=127.0.0.1", "--http-port=0", "--worker=http://" + stub.HTTP}}, &ready)
	if err != nil {
		return err
	}
	r := &running{generator: newGenerator([]string{"http://" + ready.Door}), router: router, group: router.PID()}
	defer r.generator.close()
	return o.measure(ctx, r, ready.Door)
}

// measure measures a running router whose door has an address.
func (o *IdleOptions) measure(ctx context.Context, r *running, door string) error {
	if _, err := r.answered(ctx, readyTime); err != nil {
		return err
	}
	start, err := r.usage()
	if err != nil {
		return err
	}
	open, err := connect(ctx, door, o.Connections)
	defer func() {
		for _, c := range open {
			_ = c.Close() // the router may have closed it
		}
	}()
	if err != nil {
		return err
	}
	idle, err := r.usage()
	if err != nil {
		return err
	}
	took, err := r.answered(ctx, 0)
	if err != nil {
		return fmt.Errorf("a request beside the idle connections: %w", err)
	}
	if err := alive(open); err != nil {
		return err
	}
	for _, c := range open {
		if err := c.Close(); err != nil {
			return err
		}
	}
	if err := cluster.Wait(ctx, o.Wait); err != nil {
		return err
	}
	after, err := r.usage()
	if err != nil {
		return err
	}
	kept := after.bytes - start.bytes
	const mib = 1 << 20
	fmt.Fprintf(o.Out, "start                     %7.1f MiB resident\n", float64(start.bytes)/mib)
	fmt.Fprintf(o.Out, "%5d idle connections    %7.1f MiB, %.1f KiB each; the first token of a request beside them %.1f ms\n",
		len(open), float64(idle.bytes)/mib, float64(idle.bytes-start.bytes)/1024/float64(len(open)), float64(took.Microseconds())/1e3)
	fmt.Fprintf(o.Out, "%5.0f s after their end    %7.1f MiB\n", o.Wait.Seconds(), float64(after.bytes)/mib)
	fmt.Fprintf(o.Out, "bench-front-idle: connections=%d start_mib=%.1f idle_mib=%.1f after_mib=%.1f kept_mib=%.1f\n",
		len(open), float64(start.bytes)/mib, float64(idle.bytes)/mib, float64(after.bytes)/mib, float64(kept)/mib)
	if kept > maxKept {
		return fmt.Errorf("the router kept %.1f MiB: want at most %d", float64(kept)/mib, maxKept/mib)
	}
	return nil
}

// answered sends a request until the router answers it, for at most limit, and returns the time to
// its first token.
func (r *running) answered(ctx context.Context, limit time.Duration) (took time.Duration, err error) {
	c := newMaker(1, false).next()
	var last error
	err = cluster.Until(ctx, limit, 100*time.Millisecond, func() (bool, error) {
		s, err := r.send(ctx, 0, &c)
		if last = err; err == nil {
			took = time.Duration(s.first) + firstDelay
		}
		return err == nil, nil
	})
	return took, errors.Join(err, last)
}

// connect opens n connections, each of which gets one answer. It returns the connections that are
// open, also after an error.
func connect(ctx context.Context, address string, n int) (open []net.Conn, err error) {
	opened := make(chan net.Conn, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(dialers)
	for range n {
		g.Go(func() error {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			opened <- c
			return greet(c)
		})
	}
	err = g.Wait()
	close(opened)
	for c := range opened {
		open = append(open, c)
	}
	return open, err
}

// greet has a connection answer one request.
func greet(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(readyTime)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: door\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("GET /health: %s", resp.Status))
	}
	return nil
}

// alive checks that the router has closed none of the connections.
func alive(open []net.Conn) error {
	for i, c := range open {
		if err := greet(c); err != nil {
			return fmt.Errorf("idle connection %d of %d: %w", i+1, len(open), err)
		}
	}
	return nil
}
