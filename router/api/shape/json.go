package shape

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/control"
)

const (
	// maxReading bounds the bytes of bodies that are not decoded yet. maxKept bounds the bytes
	// of all bodies in progress.
	maxReading = 128 << 20
	maxKept    = 512 << 20
)

// Options configure a JSON.
type Options struct {
	// Counters count bodies that were refused or ended. It is required.
	Counters *bodies.Counters
	// Log may be nil.
	Log *zap.Logger
}

// JSON reads and writes bodies. Make one with New.
type JSON struct {
	budget *bodies.Budget
	log    *zap.Logger
}

// New returns a JSON.
func New(o Options) *JSON {
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return &JSON{budget: bodies.New(maxReading, maxKept, o.Counters), log: o.Log}
}

// Handler serves routes, which have patterns such as "POST /query". Other paths are 404, other
// methods 405, both with a JSON body.
func (j *JSON) Handler(routes map[string]http.HandlerFunc) http.Handler {
	mux, methods := http.NewServeMux(), make(map[string]bool)
	for pattern, h := range routes {
		mux.HandleFunc(pattern, j.bounded(h))
		if _, path, _ := strings.Cut(pattern, " "); !methods[path] {
			methods[path] = true
			mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
				j.Fail(w, http.StatusMethodNotAllowed, errors.New("method not allowed"))
			})
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		j.Fail(w, http.StatusNotFound, errors.New("route not found"))
	})
	return control.RefuseCrossSite(mux)
}

// budgeted is a body that is charged to the budget.
type budgeted struct {
	*bodies.Body
	io.Closer
}

// bounded returns h with bodies that are charged to the budget, as those of the client's address,
// until h returns.
func (j *JSON) bounded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		host, _, _ := net.SplitHostPort(req.RemoteAddr) // callers without an address are one client
		body := j.budget.Wrap(req.Body, host, bodies.ReadBy(w, req))
		defer body.Done()
		own := *req
		own.Body = budgeted{body, req.Body}
		h(w, &own)
	}
}

// Decode reads the body of a request, at most limit bytes, into v. Unknown fields are ignored,
// as Dynamo's clients expect. After an error Decode answers the request and returns false.
func (j *JSON) Decode(w http.ResponseWriter, req *http.Request, limit int64, v any) bool {
	charged, _ := req.Body.(budgeted)
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		j.Fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("body: more than %d bytes", limit))
		return false
	case errors.Is(err, bodies.ErrBusy):
		j.Fail(w, http.StatusServiceUnavailable, err)
		return false
	case errors.Is(err, bodies.ErrSlow), errors.Is(err, bodies.ErrLate):
		j.Fail(w, http.StatusRequestTimeout, err)
		return false
	case err != nil:
		j.Fail(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
		return false
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch err := json.Unmarshal(body, v); {
	case errors.As(err, &syntax):
		j.Fail(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
	case errors.As(err, &kind):
		// Embedded structs are no fields of the body: the last name is.
		field := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
		j.Fail(w, http.StatusUnprocessableEntity, fmt.Errorf("%s: want %s, not %s", cmp.Or(field, "body"), kind.Type, kind.Value))
	case err != nil:
		j.Fail(w, http.StatusUnprocessableEntity, fmt.Errorf("body: %w", err))
	default:
		if charged.Body != nil {
			charged.Decoded()
		}
		return true
	}
	return false
}

// Need answers 422 and returns false when a required field is missing.
func (j *JSON) Need(w http.ResponseWriter, field string, given bool) bool {
	if !given {
		j.Fail(w, http.StatusUnprocessableEntity, fmt.Errorf("%s: the field is missing", field))
	}
	return given
}

// OK answers that a request is done.
func (j *JSON) OK(w http.ResponseWriter, status int) {
	j.Answer(w, status, map[string]string{"status": "ok"})
}

// Fail answers with an error.
func (j *JSON) Fail(w http.ResponseWriter, status int, err error) {
	j.Answer(w, status, map[string]string{"error": err.Error()})
}

// Answer answers with v as JSON and flushes, because only that shows whether the client has left.
// Then it returns false.
func (j *JSON) Answer(w http.ResponseWriter, status int, v any) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	err := json.NewEncoder(w).Encode(v)
	if err == nil {
		if err = http.NewResponseController(w).Flush(); errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	if err != nil {
		j.log.Debug("answer is not delivered", zap.Error(err))
	}
	return err == nil
}
