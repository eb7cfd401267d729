package killloop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// role is what a child is.
type role string

const (
	roleEngine  role = "engine"
	roleChecker role = "checker"
	roleHand    role = "hand"
)

// orders are the first line that the harness writes to a child.
type orders struct {
	Role   role   `json:"role"`
	Socket string `json:"socket"`
	// Worker is the engine's id; the checker's in the first namespace, and those
	// after it in the others.
	Worker uint64 `json:"worker"`
	// Space is the engine's namespace.
	Space int `json:"space"`
	// Life counts how often the engine was started before.
	Life uint32 `json:"life"`
	Seed uint64 `json:"seed"`
	// Wanted is what a checker looks for.
	Wanted []wanted `json:"wanted,omitempty"`
}

// wanted are blocks of a document that must be found, in ascending order.
type wanted struct {
	Space  int      `json:"ns"`
	Doc    docID    `json:"doc"`
	Blocks []uint32 `json:"blocks"`
}

// redial is the pause between two tries to reach the agent, answerTime bounds
// the wait for its answers: what normally ends one is the connection.
const (
	redial     = 5 * time.Millisecond
	answerTime = 20 * time.Second
)

// Serve is an engine, its worker or a checker, as the first line of in orders. It writes
// what it sees to out and ends with in or ctx; a checker, when it has looked for
// everything. Nobody but Run
// and Serve itself start the process that calls it.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(in)
	var o orders
	if err := lines.Decode(&o); err != nil {
		return fmt.Errorf("orders: %w", err)
	}
	if o.Role == roleHand {
		return serveHand(o, lines, out)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		io.Copy(io.Discard, in) //nolint:errcheck // it ends with the harness, whatever the reason
	}()
	switch o.Role {
	case roleEngine:
		return newEngine(o, out).run(ctx)
	case roleChecker:
		return check(ctx, o, out)
	}
	return fmt.Errorf("role %q: want %s, %s or %s", o.Role, roleEngine, roleChecker, roleHand)
}

// link is one session with one agent: the scheduler's connection, the worker's
// and the mappings, which copies may outlive the agent in.
type link struct {
	sched   *proto.SchedulerClient
	worker  *proto.WorkerClient
	welcome proto.Welcome
}

// dial connects both, over and over until ctx ends: the agent may be dead, and
// it may not have noticed yet that the engine's earlier process is.
func dial(ctx context.Context, o *orders, space int, worker uint64) (link, error) {
	for {
		l, err := dialOnce(ctx, o, space, worker)
		if err == nil {
			return l, nil
		}
		if !pause(ctx, redial) {
			return link{}, err
		}
	}
}

func dialOnce(ctx context.Context, o *orders, space int, worker uint64) (link, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c := clientOptions(o, space, worker, 0)
	sched, err := proto.DialScheduler(ctx, c)
	if err != nil {
		return link{}, err
	}
	w := sched.Welcome()
	c.Hello.Session = w.Session
	wc, err := proto.DialWorker(ctx, c, proto.Register{DeviceBlocks: docBlocks, BlockBytes: w.BlockBytes})
	if err != nil {
		_ = sched.Close()
		return link{}, err
	}
	return link{sched, wc, w}, nil
}

func clientOptions(o *orders, space int, worker, session uint64) proto.ClientOptions {
	return proto.ClientOptions{Socket: o.Socket, Hello: proto.Hello{
		Engine: "kill-loop " + string(o.Role), Incarnation: uint64(o.Life), WorkerID: worker, Session: session, Namespace: namespaceOf(space),
	}}
}

// close unmaps the extents: no copy may be in flight. Before that it says BYE if
// the connection stands.
func (l *link) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.sched.Bye(ctx, "done") // a connection that has ended needs no goodbye
	_ = l.worker.Close()
	_ = l.sched.Close()
}

// devices are the device blocks that a load of n blocks names.
func devices(n int) []uint32 {
	d := make([]uint32, n)
	for i := range d {
		d[i] = uint32(i)
	}
	return d
}

// pause waits, and is false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
