package proto

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ErrDisconnected says that the connection to the agent has ended.
var ErrDisconnected = errors.New("connection to the agent has ended")

// RefusedError is an ERROR frame from the agent.
type RefusedError struct {
	// Type is the refused frame.
	Type Type
	// Reply is the agent's answer.
	Reply Error
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("agent refused %s: %s: %s", e.Type, e.Reply.Code, e.Reply.Text)
}

// ClientOptions are the options of both kinds of client.
type ClientOptions struct {
	// Socket is the path of the agent's socket.
	Socket string
	// Hello is sent unchanged except for Major, Minor, Role, WantEvicted and
	// ListsCached, which the client sets.
	Hello Hello
	// Evicted is called with the blocks that have left a tier, and the number of
	// such notices that were lost since the session began. The goroutine that reads
	// the connection calls it. Nil asks for no notices. A worker gets none.
	Evicted func(tier kv.Tier, hashes []kv.SequenceHash, lost uint64)
	// Cached returns the hashes of the device's prefix cache, as the engine's
	// events have them. An error tells the agent that the cache cannot be listed.
	// Cached is called from a goroutine of its own, once at a time. ctx ends with
	// the connection. With nil the client cannot list. A worker is not asked.
	Cached func(ctx context.Context) ([]kv.EngineHash, error)
	// Log gets what the agent reports outside of an answer. Nil logs nothing.
	Log *zap.Logger
}

// maxPending bounds the calls that wait for an answer on one connection.
const maxPending = 4096

// client is the common part of both kinds of client: one connection, one goroutine
// that reads it, the pending calls, and the mapped extents.
type client struct {
	conn    *Conn
	log     *zap.Logger
	welcome Welcome
	extents *extentMap
	// notices are called with the bodies of frames that are no answers.
	notices map[Type]func(body []byte) error
	lister  *lister // nil where LIST_CACHED is not answered
	done    chan struct{}

	mu      sync.Mutex
	corr    uint32
	pending map[uint32]pendingCall
	cause   error // why done was closed; set before it is
}

type pendingCall struct {
	sent   Type
	answer chan reply // room for one, so that the reader never waits
}

// reply is a copy of an answer: its type and its body.
type reply struct {
	Type
	body []byte
}

// dial connects to the agent's socket, sends HELLO with the role and reads WELCOME. ctx bounds
// that. The caller then sets the notices and starts run, which reads all later frames.
func dial(ctx context.Context, o ClientOptions, role Role) (*client, error) {
	log := cmp.Or(o.Log, zap.NewNop())
	conn, err := Dial(ctx, o.Socket)
	if err != nil {
		return nil, err
	}
	// A deadline in the past ends a blocked receive.
	stop := context.AfterFunc(ctx, func() { conn.SetReceiveDeadline(time.Unix(1, 0)) })
	w, err := handshake(conn, o.Hello, role)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("agent socket %s: %w", o.Socket, err)
	}
	return &client{
		conn: conn, log: log, welcome: w, extents: newExtentMap(&w),
		notices: map[Type]func([]byte) error{},
		done:    make(chan struct{}), pending: make(map[uint32]pendingCall),
	}, nil
}

// handshake sends HELLO with this version and the role, and returns the agent's WELCOME. The
// error is a RefusedError when the agent does not accept h.
func handshake(conn *Conn, h Hello, role Role) (Welcome, error) {
	h.Major, h.Minor, h.Role = VersionMajor, VersionMinor, string(role)
	if err := h.Validate(); err != nil {
		return Welcome{}, fmt.Errorf("%s %w", TypeHello, err)
	}
	if err := conn.Send(TypeHello, 1, &h, nil); err != nil {
		return Welcome{}, err
	}
	f, err := conn.Receive()
	if err != nil {
		return Welcome{}, err
	}
	if f.File != nil {
		f.File.Close()
	}
	var w Welcome
	err = decodeReply(TypeHello, reply{f.Type, f.Body}, TypeWelcome, &w)
	return w, err
}

// decodeReply decodes the answer r to a frame of type sent. An answer of type want goes into m,
// which may be nil for one without a body. An ERROR is returned as a RefusedError.
func decodeReply(sent Type, r reply, want Type, m Message) error {
	switch r.Type {
	case TypeError:
		e := &RefusedError{Type: sent}
		if err := Decode(r.Type, r.body, &e.Reply); err != nil {
			return err
		}
		return e
	case want:
		if m == nil {
			return nil
		}
		return Decode(r.Type, r.body, m)
	}
	return fmt.Errorf("agent answered %s with %s: want %s", sent, r.Type, want)
}

// run handles the agent's frames until the connection ends. Then it sets the cause that pending and
// later calls return, and closes done. It is the only reader of the connection.
func (c *client) run() {
	err := c.receiveAll()
	c.conn.Close()
	if errors.Is(err, io.EOF) {
		err = ErrDisconnected
	} else {
		err = fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	c.mu.Lock()
	c.cause = err
	c.mu.Unlock()
	close(c.done)
}

// receiveAll handles frames until the connection ends or the agent violates the protocol.
func (c *client) receiveAll() error {
	for {
		f, err := c.conn.Receive()
		if err != nil {
			return err
		}
		if err := c.handle(f); err != nil {
			return err
		}
	}
}

// handle handles one frame. An error means that the agent violates the protocol.
func (c *client) handle(f Frame) error {
	if f.Type == TypeExtentReady {
		var r ExtentReady
		if err := Decode(f.Type, f.Body, &r); err != nil {
			if f.File != nil {
				f.File.Close()
			}
			return err
		}
		return c.extents.add(r, f.File)
	}
	if f.File != nil {
		f.File.Close()
		return fmt.Errorf("%s came with a file descriptor", f.Type)
	}
	if f.Corr != 0 { // the answer to a call
		c.answer(f)
		return nil
	}
	if take := c.notices[f.Type]; take != nil {
		return take(f.Body)
	}
	if f.Type == TypeError {
		return c.refused(f.Body)
	}
	if _, known := NewMessage(f.Type); known {
		return fmt.Errorf("%s came and was not asked for", f.Type)
	}
	return nil // a type of a later minor version
}

// refused logs an ERROR of the agent about a frame that wanted no answer, such as APPEND. The
// next call about the request fails too.
func (c *client) refused(body []byte) error {
	var e Error
	if err := Decode(TypeError, body, &e); err != nil {
		return err
	}
	c.log.Warn("the agent refused a frame", zap.String("code", e.Code), zap.Uint64("request", e.Request), zap.String("text", e.Text))
	return nil
}

// answer passes a frame to the pending call with its correlation. It drops the answer to a call
// that has ended. The body is copied, because the connection uses its buffer again.
func (c *client) answer(f Frame) {
	c.mu.Lock()
	p, ok := c.pending[f.Corr]
	delete(c.pending, f.Corr)
	c.mu.Unlock()
	if ok {
		p.answer <- reply{f.Type, slices.Clone(f.Body)}
	}
}

// call sends a frame of type t with body m, waits for the answer of type want and decodes it into
// into. The error is a RefusedError when the agent refuses, ctx's when ctx ends first, and
// ErrDisconnected when the connection ends. Calls may run at the same time.
func (c *client) call(ctx context.Context, t Type, m Message, want Type, into Message) error {
	if err := validate(t, m); err != nil {
		return err
	}
	corr, answer, err := c.register(t)
	if err != nil {
		return err
	}
	defer func() {
		c.mu.Lock()
		delete(c.pending, corr)
		c.mu.Unlock()
	}()
	if err := c.conn.Send(t, corr, m, nil); err != nil {
		return err
	}
	select {
	case r := <-answer:
		return decodeReply(t, r, want, into)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", t, ctx.Err())
	case <-c.done:
	}
	select { // the answer may have been the connection's last frame
	case r := <-answer:
		return decodeReply(t, r, want, into)
	default:
		return c.err()
	}
}

// register returns a correlation that no other pending call has, and the channel that gets the
// answer to a frame of type t. The caller removes the call from c.pending.
func (c *client) register(t Type) (uint32, <-chan reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) >= maxPending {
		return 0, nil, fmt.Errorf("%s: %d calls already wait for an answer", t, maxPending)
	}
	c.corr++
	for c.corr == 0 || c.pending[c.corr].answer != nil {
		c.corr++
	}
	answer := make(chan reply, 1)
	c.pending[c.corr] = pendingCall{sent: t, answer: answer}
	return c.corr, answer, nil
}

// post sends a frame that wants no answer.
func (c *client) post(t Type, m Message) error {
	if err := validate(t, m); err != nil {
		return err
	}
	return c.conn.Send(t, 0, m, nil)
}

// validate checks the ranges of m, the body of a frame of type t; nil is valid.
func validate(t Type, m Message) error {
	if m == nil {
		return nil
	}
	if err := m.Validate(); err != nil {
		return fmt.Errorf("%s %w", t, err)
	}
	return nil
}

func (c *client) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Welcome returns the agent's answer to HELLO.
func (c *client) Welcome() Welcome { return c.welcome }

// SlotBytes returns the mapped memory of a slot, which is as long as one block. The
// memory is valid until Close, even after the connection has ended. Pins and grants
// decide whether the caller may read or write it.
func (c *client) SlotBytes(s Slot) ([]byte, error) { return c.extents.bytes(s) }

// Generation returns the slot's current generation word. A loader compares it with
// the slot's generation before and after its copy.
func (c *client) Generation(s Slot) (uint64, error) { return c.extents.generation(s) }

// Done is closed when the connection has ended. The mapped memory stays until
// Close.
func (c *client) Done() <-chan struct{} { return c.done }

// Close ends the connection without BYE, waits for the reader and unmaps the
// extents. No copy may be in flight, and no slice from SlotBytes may be used
// afterwards. Further calls do nothing.
func (c *client) Close() error {
	c.conn.Close()
	<-c.done
	if c.lister != nil {
		<-c.lister.done
	}
	return c.extents.close()
}

// Report sends the counters since the connection began. The agent counts one report
// a second.
func (c *client) Report(s Stats) error { return c.post(TypeStats, &s) }

// bye ends the connection in order.
func (c *client) bye(ctx context.Context, reason string) error {
	return c.call(ctx, TypeBye, &Bye{Reason: reason}, TypeOK, nil)
}
