package extproc

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"time"
)

// relay carries the worker's answer through the Door: chunks of Envoy go in, and the Door's
// bytes come out. It is the body that the Door reads and the writer that the Door writes to.
type relay struct {
	mu    sync.Mutex
	moves *sync.Cond

	in   []byte
	last bool  // no more input comes
	err  error // the stream has ended
	idle bool  // the Door waits for input
	done bool  // the Door has finished

	header http.Header
	status int
	out    bytes.Buffer

	// filtered is true when the client gets the Door's bytes and not the worker's. held has
	// the worker's bytes until the Door passes the answer on, for an answer that the Door
	// refuses after all.
	filtered   bool
	fromStatus int
	held       []byte
}

func newRelay() *relay {
	r := &relay{header: make(http.Header)}
	r.moves = sync.NewCond(&r.mu)
	return r
}

// Read implements io.Reader for the Door.
func (r *relay) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.in) == 0 && !r.last && r.err == nil {
		r.idle = true
		r.moves.Broadcast()
		r.moves.Wait()
	}
	r.idle = false
	switch {
	case r.err != nil:
		return 0, r.err
	case len(r.in) == 0:
		return 0, io.EOF
	}
	n := copy(p, r.in)
	r.in = r.in[n:]
	return n, nil
}

// Close implements io.Closer. The relay goes on until the end of the stream.
func (r *relay) Close() error { return nil }

// feed gives the Door a chunk and returns what the client gets in its place, when the Door
// has done with it. last says that no other chunk comes.
func (r *relay) feed(chunk []byte, last bool) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in, r.last, r.idle = chunk, last, false
	r.moves.Broadcast()
	for !r.done && r.err == nil && (last || !r.idle) {
		r.moves.Wait()
	}
	if !r.filtered {
		return chunk
	}
	passed := r.status == r.fromStatus
	if !passed {
		r.held = append(r.held, chunk...)
	}
	switch {
	case passed:
		r.held = nil
		return r.take()
	case r.done:
		// The Door found no answer in the stream. The client gets the worker's own.
		r.filtered = false
		return r.held
	}
	return nil
}

func (r *relay) take() []byte {
	b := bytes.Clone(r.out.Bytes())
	r.out.Reset()
	return b
}

// stop ends the input with an error, or with nil when the Door has finished.
func (r *relay) stop(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.done = true
	} else if r.err == nil {
		r.err = err
	}
	r.moves.Broadcast()
}

// answerFrom says which answer comes.
func (r *relay) answerFrom(status int, filtered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fromStatus, r.filtered = status, filtered
}

// Header implements http.ResponseWriter.
func (r *relay) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *relay) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == 0 {
		r.status = status
	}
}

// Write implements http.ResponseWriter. Bytes that nobody will take are dropped.
func (r *relay) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.filtered || r.fromStatus == 0 {
		r.out.Write(p)
	}
	return len(p), nil
}

// Flush implements http.Flusher. Bytes go out when the Door waits for input.
func (r *relay) Flush() {}

// SetWriteDeadline lets the Door bound its writes, which never wait.
func (r *relay) SetWriteDeadline(time.Time) error { return nil }
