package frontend

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
)

// Headers of answers. In a streamed answer the delivered tokens are a trailer.
const (
	// WorkerHeader names the worker and its rank, such as 7/0.
	WorkerHeader = "X-Blockyard-Worker"
	// PredictedHeader and DeliveredHeader are the cached tokens of the prompt: what the
	// router expected, and what the engine reported.
	PredictedHeader = "X-Blockyard-Cached-Predicted"
	DeliveredHeader = "X-Blockyard-Cached-Delivered"
	// QualityHeader carries the quality of the decision, and ScoreHeader says how workers were compared: see
	// schedule.Result.Mode. TokensHeader says how the prompt's tokens are known: exact, or approximate and why.
	QualityHeader = "X-Blockyard-Quality"
	ScoreHeader   = "X-Blockyard-Score"
	TokensHeader  = "X-Blockyard-Tokens"
)

const (
	// maxWhole bounds an answer that is kept until it is complete, so that it can still be
	// retried. A longer one is passed on as it comes.
	maxWhole = 8 << 20
	// maxErrorBody bounds the error of a worker.
	maxErrorBody = 1 << 20
	// maxEvent bounds one event of a stream.
	maxEvent = 4 << 20
	// maxResponseID bounds a remembered id, in bytes.
	maxResponseID = 256
	// writeTimeout cuts off a client that reads nothing. It is set anew at most every
	// writeTimeout/4.
	writeTimeout = time.Minute
)

// answer is a worker's answer on its way to the client.
type answer struct {
	door    *Door
	request *request
	booking *booking
	from    *http.Response

	// ended returns why the request's time is over, nil while it is not.
	ended func() error

	committed bool
	done      bool      // the client has the event that ends the stream
	failed    bool      // the client has an event with the worker's error
	tokens    int       // events with tokens
	deadline  time.Time // of writes
	// control is of the client's connection. unsent is true when part of the answer waits for
	// flush.
	control *http.ResponseController
	unsent  bool
}

// relay passes the answer on.
func (a *answer) relay() outcome {
	kind, _, _ := strings.Cut(a.from.Header.Get("Content-Type"), ";")
	switch {
	case a.from.StatusCode >= http.StatusBadRequest:
		return a.relayError()
	case strings.EqualFold(strings.TrimSpace(kind), "text/event-stream"):
		return a.relayEvents()
	}
	return a.relayWhole()
}

// relayError passes on what the request's fault is. Errors of the worker come back for a
// retry.
func (a *answer) relayError() outcome {
	body, whole, err := readBounded(a.from.Body, maxErrorBody)
	if !whole {
		return outcome{err: fmt.Errorf("error of the worker: %w", errors.Join(err, errTooLong)), reason: reasonBad, retry: true}
	}
	status := a.from.StatusCode
	if status >= http.StatusInternalServerError {
		return outcome{err: fmt.Errorf("worker answered %d", status), reason: reasonStatus, retry: true,
			status: status, header: a.from.Header, body: body}
	}
	a.begin()
	if err := a.write(body); err != nil {
		return a.clientGone(err)
	}
	return outcome{committed: true, reason: reasonStatus, status: status}
}

// relayWhole passes on an answer that is not streamed. It is kept until it is complete.
func (a *answer) relayWhole() outcome {
	body, whole, err := readBounded(a.from.Body, maxWhole)
	if err != nil {
		return a.brokenOff(err)
	}
	if whole {
		a.remember(body)
	}
	if usage, ok := openai.ParseUsage(body); ok && whole {
		a.request.used(a.door, a.booking, usage)
		a.request.out.Header().Set(DeliveredHeader, cachedText(usage))
	}
	a.begin()
	for from := io.Reader(bytes.NewReader(body)); ; from = a.from.Body {
		switch read, err := a.copy(from); {
		case err != nil && read:
			a.cutOff()
			return outcome{committed: true, err: fmt.Errorf("answer of the worker: %w", err), reason: reasonDied}
		case err != nil:
			return a.clientGone(err)
		case whole:
			return outcome{committed: true}
		}
		whole = true
	}
}

// copy passes bytes on until the end of from. read says that the error is of from.
func (a *answer) copy(from io.Reader) (read bool, err error) {
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			if err := a.write(piece[:n]); err != nil {
				return false, err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return true, err
		}
	}
}

// cutOff ends the client's connection, so that part of an answer does not look whole.
func (a *answer) cutOff() {
	// Writers of tests have no deadlines.
	_ = a.control.SetWriteDeadline(time.Unix(1, 0))
}

// scanners keeps the buffers of ended streams.
var scanners = sync.Pool{New: func() any { return openai.NewScanner(nil, maxEvent) }}

// relayEvents passes on a stream of events. Nothing leaves before the first data event.
func (a *answer) relayEvents() outcome {
	events := scanners.Get().(*openai.Scanner) //nolint:forcetypeassert // nothing else is put there
	defer scanners.Put(events)
	events.Reset(a.from.Body)
	defer events.Reset(nil)
	for {
		// Events that came together leave together, with the end of the answer if it came too.
		if a.unsent && !events.Buffered() && !events.Ended() {
			if err := a.flush(); err != nil {
				return a.clientGone(err)
			}
		}
		e, err := events.Next()
		switch {
		case errors.Is(err, io.EOF) && !a.committed:
			return outcome{err: errNoData, reason: reasonDied, retry: true}
		case err != nil && a.done, errors.Is(err, io.EOF) && !a.endsWithDone():
			// Clients that have the last event leave at once.
			return outcome{committed: true}
		case errors.Is(err, io.EOF):
			return a.brokenOff(errNotDone)
		case err != nil:
			return a.brokenOff(err)
		case e.Comment() && !a.committed:
			continue
		}
		chunk := e.Inspect()
		if chunk.Error && !a.committed {
			if o, failed := firstError(e.Data); failed {
				return o
			}
		}
		if a.note(&chunk) {
			continue
		}
		if !a.committed {
			a.remember(e.Data)
			a.request.out.Header().Set("Trailer", DeliveredHeader)
			a.begin()
			a.request.shrink()
		}
		if err := a.put(e.Raw); err != nil {
			return a.clientGone(err)
		}
		a.done, a.failed = a.done || e.Done(), a.failed || chunk.Error
	}
}

// endsWithDone reports whether every whole stream of the route ends with the event [DONE].
func (a *answer) endsWithDone() bool {
	return a.request.route == openai.Completions || a.request.route == openai.Chat
}

// firstError returns the outcome of a stream whose first event is an error. failed is false
// for an error that is the request's fault, which the client gets as it is.
func firstError(data []byte) (o outcome, failed bool) {
	var e struct {
		Error struct {
			Code any `json:"code"`
		} `json:"error"`
	}
	status := http.StatusInternalServerError
	// An error without a code is the worker's.
	if json.Unmarshal(data, &e) == nil {
		if code, ok := e.Error.Code.(float64); ok {
			status = int(code)
		}
	}
	if status < http.StatusInternalServerError {
		return o, false
	}
	return outcome{err: errFirstEvent, reason: reasonStatus, retry: true, status: http.StatusBadGateway,
		header: http.Header{"Content-Type": {"application/json"}}, body: bytes.Clone(data)}, true
}

// note records what an event carries. drop is true for the usage that the client did not
// ask for.
func (a *answer) note(c *openai.Chunk) (drop bool) {
	q := a.request
	if c.Token {
		a.tokens++
		a.booking.firstToken()
		a.booking.output(q.inputTokens + a.tokens)
		q.token(a.door)
	}
	if c.HasUsage {
		q.used(a.door, a.booking, c.Usage)
		q.out.Header().Set(DeliveredHeader, cachedText(c.Usage))
	}
	return q.addedUsage && c.UsageOnly()
}

// remember records which worker has a response of /v1/responses, from the answer or from its
// first event.
func (a *answer) remember(data []byte) {
	if a.request.route != openai.Responses {
		return
	}
	var named struct {
		ID       string `json:"id"`
		Response struct {
			ID string `json:"id"`
		} `json:"response"`
	}
	// An answer without an id cannot be asked for again.
	_ = json.Unmarshal(data, &named)
	if id := cmp.Or(named.Response.ID, named.ID); id != "" && len(id) <= maxResponseID {
		a.door.responses.Remember(a.request.tenant, id, a.booking.match.Worker)
	}
}

// begin sends the headers.
func (a *answer) begin() {
	h := a.request.out.Header()
	for name, values := range a.from.Header {
		if _, ours := h[name]; !ours {
			h[name] = values
		}
	}
	for _, name := range hopByHop {
		if name != "Trailer" {
			h.Del(name)
		}
	}
	a.request.describeTo(h, a.booking)
	a.request.out.WriteHeader(a.from.StatusCode)
	a.request.record.status = a.from.StatusCode
	a.committed = true
}

// write sends part of the answer at once.
func (a *answer) write(b []byte) error {
	if err := a.put(b); err != nil {
		return err
	}
	return a.flush()
}

// put adds to the answer. The client sees it after flush.
func (a *answer) put(b []byte) error {
	if now := time.Now(); a.deadline.Sub(now) < writeTimeout*3/4 {
		a.deadline = now.Add(writeTimeout)
		// Writers of tests have no deadlines.
		_ = a.control.SetWriteDeadline(a.deadline)
	}
	_, err := a.request.out.Write(b)
	a.unsent = true
	return err
}

// flush sends what was put.
func (a *answer) flush() error {
	a.unsent = false
	return a.control.Flush()
}

// clientGone returns the outcome of a failed write.
func (a *answer) clientGone(err error) outcome {
	return outcome{committed: true, err: fmt.Errorf("client: %w", err), reason: reasonClient}
}

// brokenOff returns the outcome of an answer that the worker did not finish. A client that
// has part of the answer is told.
func (a *answer) brokenOff(err error) outcome {
	o := outcome{committed: a.committed, err: fmt.Errorf("answer of the worker: %w", err), reason: reasonDied, retry: true}
	if errors.Is(err, openai.ErrEventTooLarge) {
		o.reason = reasonBad
	}
	if a.committed && !a.failed && a.request.http.Context().Err() == nil {
		lost := workerLost.refusal("the worker ended the answer before it was complete")
		if cause := a.ended(); cause != nil {
			lost = endRefusal(cause) // the door ended the answer, and not the worker
		}
		// A client that does not get the event sees the end of the connection.
		_ = a.write(errorEvent(a.request.route, &lost.fault))
	}
	return o
}

// errorEvent returns an error as an event of a stream.
func errorEvent(route openai.Route, f *fault) []byte {
	var name string
	if route == openai.Messages || route == openai.Responses {
		name = "event: error\n"
	}
	return fmt.Appendf(nil, "%sdata: %s\n\n", name, f.encode(route))
}

// describe is the value of TokensHeader.
func describe(p *tokens.Prompt) string {
	switch {
	case p.Exact:
		return "exact"
	case len(p.Tokens) > 0:
		return "approximate: " + p.Reason
	}
	return "none: " + p.Reason
}

// cachedText is the value of DeliveredHeader.
func cachedText(u openai.Usage) string {
	if !u.HasCached {
		return "unknown"
	}
	return strconv.Itoa(u.Cached)
}
