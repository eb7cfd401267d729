package frontend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/spans"
	"github.com/blockyard-ai/blockyard/router/frontend/tenant"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// Directory tells which worker servers there are; *workers.Directory implements it.
type Directory interface {
	// Resolve returns what a model name means. The error is one of package workers.
	Resolve(model string) (workers.Served, error)
	// Worker returns the server with an id.
	Worker(id kv.WorkerID) (*workers.Worker, bool)
	// Workers returns all servers, Models the union of their models.
	Workers() []*workers.Worker
	Models() []workers.Model
	// AllowedFor returns the servers that take requests for a model or adapter; nil means all
	// that the router has for the model. Servers that only prefill are those of PrefillFor.
	AllowedFor(model string) map[kv.WorkerID]struct{}
	PrefillFor(model string) map[kv.WorkerID]struct{}
	// Begin and Done enclose a request to a server. Done says how it went.
	Begin(id kv.WorkerID)
	Done(id kv.WorkerID, outcome workers.Outcome)
	// NoteCachedTokens notes whether the usage of an answer had the cached tokens.
	NoteCachedTokens(id kv.WorkerID, reported bool)
}

// Tokenizer turns a prompt into token ids; *tokens.Source implements it.
type Tokenizer interface {
	Tokens(ctx context.Context, model string, r *openai.Request) (tokens.Prompt, error)
}

// Options configure a Door. Router, Workers and Tokens are required.
type Options struct {
	Router  *router.Router
	Workers Directory
	Tokens  Tokenizer
	// Keys tell the tenants of clients; nil is one tenant for all.
	Keys *tenant.Keys
	// Pass are paths that are forwarded besides the known routes, such as "/v1/rerank".
	// The request goes to the least loaded worker and its body is not read.
	Pass []string
	// TrustedOrigins are sites whose pages may send requests from browsers, such as
	// https://chat.example.
	TrustedOrigins []string
	// MaxBody bounds the body of a request in bytes; 0 means 32 MiB.
	MaxBody int64
	// MaxBodies bounds the bytes of the bodies of requests in progress, beyond the first
	// 16 KiB of each; 0 means 2 GiB.
	MaxBodies int64
	// MaxRequests bounds the requests in progress; 0 means DefaultMaxRequests.
	MaxRequests int
	// MaxClientRequests bounds the requests in progress of one client address; 0 is no bound.
	MaxClientRequests int
	// Admission bounds the requests of each model that workers have, and those that wait.
	// With Running 0 no request waits here; the router's own queue holds them.
	Admission admission.Limits
	// Split says which requests are computed by one worker and decoded by another one, where
	// workers have roles.
	Split Split
	// SessionTTL is how long a session stays with its worker without a request; 0 keeps no
	// sessions together.
	SessionTTL time.Duration
	// Timeout bounds a request from its first byte to its last; 0 means no bound. A
	// request may ask for less with the header X-Blockyard-Timeout-Ms.
	Timeout time.Duration
	// OverloadStatus answers requests for which every worker is too busy; 0 means 503.
	OverloadStatus int
	// Tracer traces requests; nil traces none. It belongs to the caller.
	Tracer *spans.Tracer
	// AccessLog has the door log one line for each request.
	AccessLog bool
	// Log may be nil.
	Log *zap.Logger
}

// DefaultMaxRequests is the default of Options.MaxRequests.
const DefaultMaxRequests = 16384

const (
	defaultMaxBody = 32 << 20
	// maxPass bounds Options.Pass.
	maxPass = 64
)

// Validate reports the first option that is missing or out of range.
func (o *Options) Validate() error {
	switch {
	case o.Router == nil:
		return errors.New("router: is required")
	case o.Workers == nil:
		return errors.New("workers: is required")
	case o.Tokens == nil:
		return errors.New("tokens: is required")
	case o.MaxBody < 0 || o.MaxBody > 1<<30:
		return fmt.Errorf("max body: %d bytes are not in 0..%d", o.MaxBody, 1<<30)
	case o.MaxRequests < 0 || o.MaxRequests > 1<<20:
		return fmt.Errorf("max requests: %d is not in 0..%d", o.MaxRequests, 1<<20)
	case o.MaxBodies < 0:
		return fmt.Errorf("max bodies: %d bytes are negative", o.MaxBodies)
	case o.MaxClientRequests < 0:
		return fmt.Errorf("max client requests: %d is negative", o.MaxClientRequests)
	case o.Admission.Running < 0:
		return fmt.Errorf("admission: running: %d is negative", o.Admission.Running)
	case o.SessionTTL < 0:
		return fmt.Errorf("session ttl: %s is negative", o.SessionTTL)
	case o.Timeout < 0:
		return fmt.Errorf("timeout: %s is negative", o.Timeout)
	case o.OverloadStatus != 0 && (o.OverloadStatus < 400 || o.OverloadStatus > 599):
		return fmt.Errorf("overload status: %d is not in 400..599", o.OverloadStatus)
	case len(o.Pass) > maxPass:
		return fmt.Errorf("pass: %d paths, want at most %d", len(o.Pass), maxPass)
	}
	for i, origin := range o.TrustedOrigins {
		if err := control.CheckOrigin(origin); err != nil {
			return fmt.Errorf("trusted origins[%d]: %w", i, err)
		}
	}
	if err := o.Split.validate(); err != nil {
		return err
	}
	for i, path := range o.Pass {
		if err := checkPass(path); err != nil {
			return fmt.Errorf("pass[%d]: %w", i, err)
		}
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.MaxBody = cmp.Or(o.MaxBody, defaultMaxBody)
	o.MaxRequests = cmp.Or(o.MaxRequests, DefaultMaxRequests)
	o.MaxBodies = cmp.Or(o.MaxBodies, 2<<30)
	o.Split.Timeout = cmp.Or(o.Split.Timeout, defaultPrefillTimeout)
	o.Split.Wait = cmp.Or(o.Split.Wait, defaultHandOverWait)
	o.OverloadStatus = cmp.Or(o.OverloadStatus, 503)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}
