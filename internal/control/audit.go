package control

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// maxReason bounds the bytes of an answer with an error that the log shows, maxCall those of
	// a path with its query, and maxAbout what About adds.
	maxReason = 300
	maxCall   = 300
	maxAbout  = 1000
	// maxRefused bounds the log lines of refused calls in refusedTime.
	maxRefused  = 30
	refusedTime = time.Minute
)

// Operators guards the handlers of an operators' listener. The zero value is ready: it wants no
// token and logs nothing.
type Operators struct {
	// Tokens are the tokens of callers; nil asks for none.
	Tokens *Tokens
	// Log gets one line for each call.
	Log *zap.Logger
}

// Handler returns a handler that passes requests to h. It refuses what Protect refuses, and
// calls without a token of Tokens. Each call has one log line with the caller, the path, the status
// and the reason of a refusal. The caller is the name of the token, and the remote address or the
// user and process at a socket. Reads have the level debug: GET, HEAD, OPTIONS, and calls of
// handlers that call ReadOnly. A handler that panics has a line of the level error, and the panic
// goes on.
func (o Operators) Handler(h http.Handler) http.Handler {
	log := o.Log
	if log == nil {
		log = zap.NewNop()
	}
	refused := log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, refusedTime, maxRefused, 0)
	}))
	guarded := Protect(o.Tokens.require(h))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{}
		answer := &answerRecord{ResponseWriter: w, status: http.StatusOK}
		began, returned := time.Now(), false
		defer func() {
			fields := []zap.Field{
				zap.String("from", r.RemoteAddr), zap.String("token", c.token),
				zap.String("call", cut(r.Method+" "+r.URL.RequestURI(), maxCall)), zap.String("about", cut(c.about, maxAbout)),
				zap.Int("status", answer.status), zap.String("reason", strings.TrimSpace(string(answer.reason))),
				zap.Duration("took", time.Since(began)),
			}
			switch {
			case !returned:
				log.Error("operator's call ended in a panic", fields...)
			case answer.status == http.StatusForbidden || answer.status == http.StatusUnauthorized:
				refused.Warn("operator's call is refused", fields...)
			case safe(r.Method) || c.read:
				log.Debug("operator's call", fields...)
			default:
				log.Info("operator's call", fields...)
			}
		}()
		guarded.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
		returned = true
	})
}

// cut returns s, or its first limit bytes and three dots.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}

// HandlerBeside is Handler with a mux whose paths need no token and are not logged: files that
// everybody may have. Their requests must pass Protect.
func (o Operators) HandlerBeside(open *http.ServeMux, h http.Handler) http.Handler {
	files, operators := Protect(open), o.Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := open.Handler(r); pattern != "" {
			files.ServeHTTP(w, r)
			return
		}
		operators.ServeHTTP(w, r)
	})
}

// call is what handlers tell about the call that they serve.
type call struct {
	token, about string
	read         bool
}

type callKey struct{}

// ReadOnly says that a call changes nothing, although its method may. Outside a handler of
// Operators it does nothing.
func ReadOnly(r *http.Request) {
	if c, ok := r.Context().Value(callKey{}).(*call); ok {
		c.read = true
	}
}

// About adds to the log line of a call what it is about, such as a tier and a namespace. Outside
// a handler of Operators it does nothing.
func About(r *http.Request, text string) {
	if c, ok := r.Context().Value(callKey{}).(*call); ok {
		c.about = text
	}
}

// answerRecord keeps the status of an answer, and the start of an answer with an error.
type answerRecord struct {
	http.ResponseWriter
	status int
	reason []byte
}

// WriteHeader implements http.ResponseWriter.
func (a *answerRecord) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (a *answerRecord) Write(b []byte) (int, error) {
	if a.status >= http.StatusBadRequest {
		a.reason = append(a.reason, b[:min(len(b), maxReason-len(a.reason))]...)
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the deadlines of the connection.
func (a *answerRecord) Unwrap() http.ResponseWriter { return a.ResponseWriter }
