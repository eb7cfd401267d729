package killloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// role is the part that a child plays.
type role string

const (
	roleEngine  role = "engine"
	roleChecker role = "checker"
	roleMover   role = "mover"
)

// orders are the first line that the harness writes to a child.
type orders struct {
	Role   role   `json:"role"`
	Socket string `json:"socket"`
	// Worker is the worker id of an engine, or of a checker in the first namespace. A
	// checker uses the next ids in the other namespaces.
	Worker uint64 `json:"worker"`
	// Space is the engine's namespace.
	Space int `json:"space"`
	// Life counts how often the engine was started before.
	Life uint32 `json:"life"`
	Seed uint64 `json:"seed"`
	// Wanted are the blocks that a checker looks up.
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
	// redial is the pause between two tries to connect. answerTime bounds the wait for
	// an answer; a dead agent ends the connection earlier.
	redial     = 5 * time.Millisecond
	answerTime = 20 * time.Second
)

// Serve is the main function of the kill loop's children: an engine, its mover, or a checker. The
// first line of in says which. It writes notes, one JSON line each, to out. It returns when in or
// ctx ends; a checker also when it has looked up everything.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(in)
	var o orders
	if err := lines.Decode(&o); err != nil {
		return fmt.Errorf("orders: %w", err)
	}
	if o.Role == roleMover {
		return serveMover(o, lines, out)
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
	return fmt.Errorf("role %q: want %s, %s or %s", o.Role, roleEngine, roleChecker, roleMover)
}

// link is a session with one agent: the scheduler's connection, the worker's
// connection, and the mappings, in which copies may outlive the agent.
type link struct {
	sched   *proto.SchedulerClient
	worker  *proto.WorkerClient
	welcome proto.Welcome
}

// dial returns a session with the agent: a scheduler's and a worker's connection. It tries until
// ctx ends, because the agent may be dead, or may not have noticed yet that the engine's earlier
// process is dead.
func dial(ctx context.Context, o *orders, space int, worker uint64) (link, error) {
	for {
		l, err := dialOnce(ctx, o, space, worker)
		if err == nil {
			return l, nil
		}
		if cluster.Wait(ctx, redial) != nil {
			return link{}, err
		}
	}
}

// dialOnce tries once to connect to the agent twice, as the scheduler of an engine and as its only
// worker, in the namespace with number space. The caller closes the link.
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

// close disconnects and unmaps the extents. No copy may be in flight.
func (l *link) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.sched.Bye(ctx, "done") // a connection that has ended needs no goodbye
	_ = l.worker.Close()
	_ = l.sched.Close()
}

// devices returns the device blocks for a load of n blocks.
func devices(n int) []uint32 {
	d := make([]uint32, n)
	for i := range d {
		d[i] = uint32(i)
	}
	return d
}

// mover is the second process of an engine: a worker that makes some of its copies. It
// outlives a killed engine by the copy that it makes, and the engine's slots stay in
// use until then.
type mover struct {
	cmd   *exec.Cmd
	jobs  *json.Encoder // to its standard input
	stdin io.Closer
	done  *json.Decoder // what it answers
	pipe  io.Closer

	mu sync.Mutex // held by the store that uses it
}

// moverJob asks the mover to join a session and to fill granted slots.
type moverJob struct {
	Session uint64       `json:"session"`
	Doc     docID        `json:"doc"`
	Blocks  []uint32     `json:"blocks"`
	Slots   []proto.Slot `json:"slots"`
}

// moverAnswer says whether the slots are filled. If not, none was touched.
type moverAnswer struct {
	Filled bool `json:"filled"`
}

// answerFile is the mover's descriptor for answers. Its notes go to the engine's
// standard output.
const answerFile = 3

// startMover starts this program once more as the engine's mover: a worker process of its own,
// which goes on copying when the engine is killed. It is not a cluster.Process, which the kernel
// kills with its parent. The caller closes it.
func startMover(o orders) (*mover, error) {
	answers, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{write}
	// A group of its own: what kills the engine must not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the engine's worker: %w", err), answers.Close())
	}
	m := &mover{cmd: cmd, jobs: json.NewEncoder(stdin), stdin: stdin, done: json.NewDecoder(answers), pipe: answers}
	o.Role = roleMover
	return m, m.jobs.Encode(o)
}

// copy has the mover copy a document's blocks into slots, and waits for the end. It returns false
// when the mover could not join the session; then no slot was touched. The caller holds m.mu.
func (m *mover) copy(session uint64, doc docID, copies []*slotCopy) bool {
	j := moverJob{Session: session, Doc: doc}
	for _, c := range copies {
		j.Blocks, j.Slots = append(j.Blocks, c.block), append(j.Slots, c.slot)
	}
	var a moverAnswer
	return m.jobs.Encode(j) == nil && m.done.Decode(&a) == nil && a.Filled
}

// close waits until the mover has ended.
func (m *mover) close() error {
	return errors.Join(m.stdin.Close(), m.cmd.Wait(), m.pipe.Close())
}

// serveMover is the main function of the mover, the engine's worker process: it carries out the
// jobs on in. It returns when the engine has ended and the copies under way are done.
func serveMover(o orders, in *json.Decoder, out io.Writer) error {
	answers := os.NewFile(answerFile, "answers")
	defer answers.Close()
	w := worker{
		orders: o, notes: newNoteWriter(out, o.Space), stamp: mix(^(o.Seed ^ o.Worker<<32 ^ uint64(o.Life))),
	}
	ns := namespaceOf(o.Space)
	w.space = ns.ID()
	reply := json.NewEncoder(answers)
	for {
		var j moverJob
		if err := in.Decode(&j); err != nil {
			return w.notes.failed() // the engine is gone
		}
		filled := w.fill(&j)
		_ = reply.Encode(moverAnswer{filled}) // the engine may be gone
	}
}

// worker is the state of a mover.
type worker struct {
	orders
	notes *noteWriter
	space kv.NamespaceID
	stamp uint64
}

// fill makes the copies of job j, which the engine has given its mover: it joins the engine's
// session as a worker and fills the slots. Once the first byte is written, neither the end of the
// engine nor that of the agent stops it. It returns false when it wrote nothing.
func (w *worker) fill(j *moverJob) bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	c, err := proto.DialWorker(ctx, clientOptions(&w.orders, w.Space, w.Worker, j.Session), proto.Register{DeviceBlocks: docBlocks, BlockBytes: blockBytes})
	if err != nil {
		return false // the agent is dead, or the session
	}
	defer func() {
		_ = c.Bye(ctx, "done") // a connection that has ended needs no goodbye
		_ = c.Close()
	}()
	copies, ok := w.copies(c, j)
	if !ok {
		return false
	}
	if !w.notes.copyAll(context.Background(), copies, -1) {
		panic("BUG: a copy that nothing stops has ended early")
	}
	for _, s := range copies {
		w.notes.fault(faultForeign, s.foreign(), "at the end of the copy to %+v", s.slot)
	}
	w.notes.put(note{Kind: noteSettle, Slots: j.Slots}) // the ledger learns that the copies have ended
	return true
}

// copies waits until the extents (files) of the job's slots are mapped, and returns a copy to make
// for each slot. The agent announces extents over the connection; ok is false when that ends
// first.
func (w *worker) copies(c *proto.WorkerClient, j *moverJob) (copies []*slotCopy, ok bool) {
	keys := j.Doc.keys(w.space)
	for i, slot := range j.Slots {
		mem, err := c.SlotBytes(slot)
		for err != nil {
			select {
			case <-c.Done():
				return nil, false
			case <-time.After(time.Millisecond):
			}
			mem, err = c.SlotBytes(slot)
		}
		copies = append(copies, newSlotCopy(j.Blocks[i], slot, mem, w.stamp, keys[j.Blocks[i]]))
	}
	return copies, true
}
