package control

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// maxReason bounds the bytes of an answer with an error that the log shows.
	maxReason = 300
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
	// Frequent are paths whose calls are logged at the level debug, as reads are.
	Frequent []string
}

// Handler returns a handler that passes requests to h. It refuses what Protect refuses, and
// calls without a token of Tokens. The log tells of each call who asked (remote address or the
// user and process at a socket, and the token's name), what for, and with which result.
// Successful reads are logged at the level debug.
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
		began := time.Now()
		guarded.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), callKey{}, c)))
		fields := []zap.Field{
			zap.String("from", r.RemoteAddr), zap.String("token", c.token),
			zap.String("call", r.Method+" "+r.URL.RequestURI()), zap.String("about", c.about),
			zap.Int("status", answer.status), zap.String("reason", strings.TrimSpace(string(answer.reason))),
			zap.Duration("took", time.Since(began)),
		}
		switch {
		case answer.status == http.StatusForbidden || answer.status == http.StatusUnauthorized:
			refused.Warn("operator's call is refused", fields...)
		case safe(r.Method) || slices.Contains(o.Frequent, r.URL.Path):
			log.Debug("operator's call", fields...)
		default:
			log.Info("operator's call", fields...)
		}
	})
}

// call is what handlers tell about the call that they serve.
type call struct{ token, about string }

type callKey struct{}

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
