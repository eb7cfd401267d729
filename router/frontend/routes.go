package frontend

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/memory"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// Headers of requests.
const (
	// TimeoutHeader bounds a request in milliseconds.
	TimeoutHeader = "X-Blockyard-Timeout-Ms"
	// WorkerPinHeader names the only worker that may serve a request, in the form of WorkerHeader.
	WorkerPinHeader = "X-Blockyard-Pin-Worker"
	// ObjectiveHeader names the parts of the request's price that count, one of config.Objectives.
	ObjectiveHeader = "X-Blockyard-Objective"
)

// routed are the paths whose bodies are read, by method and path.
var routed = map[string]openai.Route{
	"POST /v1/completions":      openai.Completions,
	"POST /v1/chat/completions": openai.Chat,
	"POST /v1/responses":        openai.Responses,
	"POST /v1/messages":         openai.Messages,
	"POST /v1/embeddings":       openai.Embeddings,
	"POST /tokenize":            openai.Tokenize,
}

// Handler serves clients. docs/front-door.md lists the paths. Every other path is 404.
func (d *Door) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, route := range routed {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, route) })
	}
	for _, path := range append([]string{"/v1/messages/count_tokens", "/detokenize"}, d.options.Pass...) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, openai.Other) })
	}
	mux.HandleFunc("GET /v1/models", d.listModels)
	mux.HandleFunc("GET /health", d.health)
	mux.HandleFunc("GET /v1/responses/{id}", d.pinnedResponse)
	mux.HandleFunc("POST /v1/responses/{id}/cancel", d.pinnedResponse)
	mux.HandleFunc("/v1/realtime", func(w http.ResponseWriter, r *http.Request) {
		d.reject(w, r, unsupportedURL.refusal("/v1/realtime is a WebSocket, which this router does not forward; connect to a worker"))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		d.reject(w, r, unknownURL.refusal(fmt.Sprintf("%.20s %.200q is not served; --pass PATH forwards a path", r.Method, r.URL.Path)))
	})
	return d.guarded(mux)
}

// checkPass checks one of Options.Pass.
func checkPass(path string) error {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " {}?#") || len(path) > 256 {
		return fmt.Errorf("%.300q: want a path such as /v1/rerank, at most 256 bytes, without a query", path)
	}
	for pattern := range routed {
		if strings.HasSuffix(pattern, " "+path) {
			return fmt.Errorf("%q: is served already", path)
		}
	}
	return nil
}

func (d *Door) newRequest(w http.ResponseWriter, r *http.Request, route openai.Route) *request {
	id := r.Header.Get(requestIDHeader)
	if id == "" || len(id) > 256 {
		id = rand.Text()
	}
	return &request{http: r, out: w, id: id, route: route, began: time.Now(), parsed: &openai.Request{Route: route}, through: throughOf(r.Context())}
}

// serve answers one request of a route.
func (d *Door) serve(w http.ResponseWriter, r *http.Request, route openai.Route) {
	q := d.newRequest(w, r, route)
	ctx := d.trace(q)
	defer d.finish(q)
	leave, refused := d.enter(q)
	if refused != nil {
		d.refuse(q, refused)
		return
	}
	defer leave()
	if timeout, err := d.timeout(r); err != nil {
		d.refuse(q, bad(err))
		return
	} else if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errDeadline)
		defer cancel()
	}
	budgeted := d.bodies.Wrap(http.MaxBytesReader(w, r.Body, d.options.MaxBody), q.tenant+"/"+admission.ClientOf(r), bodies.ReadBy(w, r))
	defer budgeted.Done()
	q.charge = budgeted
	if refused := d.prepare(ctx, q, budgeted); refused != nil {
		d.refuse(q, refused)
		return
	}
	admitted, refused := d.admit(ctx, q)
	if refused != nil {
		d.refuse(q, refused)
		return
	}
	defer admitted()
	d.run(ctx, q)
}

// timeout returns how long a request may take; 0 is no bound.
func (d *Door) timeout(r *http.Request) (time.Duration, error) {
	text := r.Header.Get(TimeoutHeader)
	if text == "" {
		return d.options.Timeout, nil
	}
	ms, err := strconv.ParseUint(text, 10, 32)
	if err != nil || ms == 0 {
		return 0, &openai.FieldError{Field: TimeoutHeader, Want: "1..4294967295 milliseconds", Got: fmt.Sprintf("%.32q", text)}
	}
	asked := time.Duration(ms) * time.Millisecond
	if d.options.Timeout > 0 {
		asked = min(asked, d.options.Timeout)
	}
	return asked, nil
}

// prepare reads the body, finds the model and turns the prompt into tokens.
func (d *Door) prepare(ctx context.Context, q *request, budgeted *bodies.Body) *refusal {
	body, refused := d.read(q, budgeted)
	if refused != nil {
		return refused
	}
	q.client, q.body = body, body
	if !d.deaths.Empty() && d.deaths.Fatal(memory.FingerprintOf(q.http.URL.Path, body), time.Now()) {
		return (&outcome{}).refusal(ctx, true)
	}
	var err error
	if q.route != openai.Other {
		if q.parsed, err = openai.Parse(q.route, body); err != nil {
			return bad(err)
		}
	}
	if err := d.claims(q); err != nil {
		return bad(err)
	}
	if q.tenant == "" {
		// Lower is first, as in vLLM. With keys, priority orders the requests of a tenant alone.
		q.priorityJump = math.Max(0, -float64(q.parsed.Priority))
	}
	if previous := q.parsed.PreviousResponse; previous != "" {
		at := d.responses.Worker(q.tenant, previous)
		if at == nil && q.tenant != "" {
			return noResponse() // it may be another tenant's
		}
		if q.pinned == nil {
			q.pinned = at
		}
	}
	if q.served, err = d.options.Workers.Resolve(q.parsed.Model); err != nil {
		return modelError(err)
	}
	within, tokens := d.begin(ctx, phaseTokens)
	q.prompt, err = d.options.Tokens.Tokens(within, q.served.Model, q.parsed)
	d.end(tokens, q.served.Model, err)
	if err != nil {
		if ctx.Err() != nil {
			return endRefusal(context.Cause(ctx))
		}
		return bad(err)
	}
	known, _, _ := strings.Cut(describe(&q.prompt), ":")
	d.metrics.Prompt(known)
	if q.tokens = q.prompt.Tokens; len(q.tokens) == 0 {
		q.tokens = standIns(q.parsed)
	}
	q.inputTokens, q.promptTokens = len(q.tokens), len(q.prompt.Tokens)
	if most := q.served.MaxLen; most > 0 && len(q.prompt.Tokens) > most && q.prompt.Exact {
		return bad(&openai.FieldError{Field: "prompt", Want: fmt.Sprintf("at most the %d tokens that the model takes", most), Got: fmt.Sprintf("%d tokens", len(q.prompt.Tokens))})
	}
	q.expected = d.lengths.Expected(q.tenant, q.served.Model, q.parsed.MaxTokens)
	if err := q.edit(); err != nil {
		return bad(err)
	}
	return nil
}

// read reads the body. A body that is too large by its length is refused before it comes.
func (d *Door) read(q *request, budgeted *bodies.Body) ([]byte, *refusal) {
	most := d.options.MaxBody
	tooLarge := q.http.ContentLength > most
	var body []byte
	var err error
	if !tooLarge {
		body, err = readBody(budgeted, q.http.ContentLength)
		budgeted.Decoded()
		if err != nil {
			var limit *http.MaxBytesError
			tooLarge = errors.As(err, &limit)
		}
	}
	switch {
	case tooLarge:
		return nil, bodyTooLarge.refusal(fmt.Sprintf("body: more than %d bytes", most))
	case errors.Is(err, bodies.ErrBusy):
		return nil, tooManyRequests.refusal("the bodies of other requests fill the memory")
	case errors.Is(err, bodies.ErrSlow), errors.Is(err, bodies.ErrLate):
		return nil, bodyTooSlow.refusal(err.Error())
	case err != nil:
		return nil, badRequest.refusal("body: " + err.Error())
	}
	return body, nil
}

// maxAhead bounds the memory that the length in a request's header gets before the bytes
// have come.
const maxAhead = 64 << 10

// readBody reads a body whose length the client says.
func readBody(from io.Reader, length int64) ([]byte, error) {
	var b bytes.Buffer
	if n := length; n > 0 {
		b.Grow(int(min(n, maxAhead)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(from)
	return b.Bytes(), err
}

// standIns returns numbers in place of unknown tokens, one for four bytes of the prompt.
// Prompts with a common beginning have common numbers, so that load and predictions of
// workers without events work. They equal no real tokens in the index.
func standIns(r *openai.Request) []uint32 {
	text := []byte(r.Text)
	if r.Chat != nil {
		text = r.Chat
	}
	out := make([]uint32, 0, len(text)/4+1)
	for ; len(text) >= 4; text = text[4:] {
		out = append(out, binary.LittleEndian.Uint32(text))
	}
	return out
}

// identify finds the tenant of the request by its key.
func (d *Door) identify(q *request) *refusal {
	client, err := d.options.Keys.Client(q.http.Header)
	if err != nil {
		q.out.Header().Set("WWW-Authenticate", "Bearer")
		return invalidKey.refusal(err.Error())
	}
	q.caller, q.tenant, q.strictPriority = client, client.Tenant, client.Priority
	return nil
}

// claims reads what only some clients may set: the worker, its rank, kv_transfer_params and
// the salts of tenants.
func (d *Door) claims(q *request) error {
	rights := q.caller.Rights
	rank := q.http.Header.Get(rankHeader)
	switch {
	case q.parsed.KVTransfer && !rights.KVTransfer:
		return &openai.FieldError{Field: "kv_transfer_params", Want: "no value: only the router sets it", Got: "a value"}
	case rank != "" && !rights.Rank:
		return &openai.FieldError{Field: rankHeader, Want: "no value: only the router sets it", Got: "a value"}
	case q.http.Header.Get(WorkerPinHeader) != "" && !rights.Pin:
		return &openai.FieldError{Field: WorkerPinHeader, Want: "no value: the API key does not allow it", Got: "a value"}
	}
	var err error
	if q.pinned, err = pinOf(q.http.Header); err != nil {
		return err
	}
	if q.hints, err = admission.HintsOf(q.http.Header); err != nil {
		return err
	}
	if q.override, err = overrideOf(q.http.Header, d.options.Router.Config()); err != nil {
		return err
	}
	if rank != "" {
		number, err := strconv.ParseUint(rank, 10, 32)
		if err != nil || q.pinned == nil {
			return &openai.FieldError{Field: rankHeader, Want: "the rank of a worker that " + WorkerPinHeader + " names", Got: fmt.Sprintf("%.32q", rank)}
		}
		q.pinned.Rank = kv.DPRank(number)
		if w, ok := d.options.Workers.Worker(q.pinned.ID); ok {
			q.pinned.Rank += kv.DPRank(w.FirstRank) // the header counts from the server's first rank
		}
	}
	return q.salt()
}

// salt makes the tenant part of the request's cache salt.
func (q *request) salt() error {
	own, object := q.parsed.Salt, q.route != openai.Tokenize
	if q.route == openai.Other {
		own, object = saltOf(q.client)
	}
	salt, err := q.caller.Salt(own)
	if err != nil {
		return &openai.FieldError{Field: "cache_salt", Want: err.Error(), Got: fmt.Sprintf("%.80q", own)}
	}
	if salt == own || !object {
		return nil
	}
	q.parsed.Salt = salt
	q.edits = append(q.edits, openai.Edit{Key: "cache_salt", Value: openai.String(salt)})
	return nil
}

// saltOf returns the cache salt of a body that is not parsed. object is false for a body
// that is no JSON object.
func saltOf(body []byte) (salt string, object bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return "", false
	}
	// The worker refuses a salt that is no string.
	_ = json.Unmarshal(members["cache_salt"], &salt)
	return salt, true
}

// edit makes the worker's body from the client's.
func (q *request) edit() error {
	edits := q.edits
	if q.asksUsage() {
		q.addedUsage = true
		edits = append(edits, openai.Edit{Key: "stream_options", Value: q.parsed.WithUsage()})
	}
	if q.rendered() {
		ids := openai.TokenList(q.prompt.Tokens)
		params := append(append([]byte(`{"prompt_token_ids":`), ids...), '}')
		edits = append(edits, openai.Edit{Key: "kv_transfer_params", Value: params})
	}
	if len(edits) == 0 {
		return nil
	}
	body, err := openai.Apply(q.body, edits...)
	if err != nil {
		return err
	}
	q.body = body
	return nil
}

// rendered reports whether the worker gets the prompt's token ids beside the text.
func (q *request) rendered() bool { return q.prompt.Rendered && !q.parsed.KVTransfer }

// asksUsage reports whether the door asks for the usage event of a stream: of the routes
// that have stream_options, when the client did not ask.
func (q *request) asksUsage() bool {
	p := q.parsed
	return p.Stream && (q.route == openai.Completions || q.route == openai.Chat) && (p.IncludeUsage == nil || !*p.IncludeUsage)
}

// pinOf returns the worker that a request names, nil without one.
func pinOf(h http.Header) (*kv.Worker, error) {
	text := h.Get(WorkerPinHeader)
	if text == "" {
		return nil, nil
	}
	id, rank, ranked := strings.Cut(text, "/")
	worker, err := strconv.ParseUint(id, 10, 64)
	number := uint64(0)
	if err == nil && ranked {
		number, err = strconv.ParseUint(rank, 10, 32)
	}
	if err != nil {
		return nil, &openai.FieldError{Field: WorkerPinHeader, Want: "WORKER or WORKER/RANK, such as 7/0", Got: fmt.Sprintf("%.64q", text)}
	}
	return &kv.Worker{ID: kv.WorkerID(worker), Rank: kv.DPRank(number)}, nil
}
