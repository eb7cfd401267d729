package tokens

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// Server is a server that can be asked for tokens.
type Server struct {
	URL           string // base URL without a slash at the end
	Render        bool   // the server has the render routes
	Authorization string // value of the Authorization header; empty for none
}

// Servers says which servers can be asked.
type Servers interface {
	// Tokenizers returns the servers of a model, the preferred ones first. The caller does
	// not change the list.
	Tokenizers(model string) []Server
}

// Prompt is the first prompt of a request as tokens.
type Prompt struct {
	Tokens []uint32 // nil when unknown; shared: the caller must not change it
	Exact  bool     // the engine will see these tokens
	Reason string   // why the tokens are not exact, or why there are none
	// Rendered: a render route made the tokens of a text-only chat, so that the request may
	// carry them as kv_transfer_params.prompt_token_ids.
	Rendered bool
	Objects  []Object // multimodal objects in the tokens, in order; from a render route
}

// Object is a multimodal object whose placeholders stand in the tokens.
type Object struct {
	Hash           string // the engine's name of the content
	Offset, Length int    // in tokens
}

// Options configure a Source. Zero values take the defaults.
type Options struct {
	Servers       Servers
	Render        Server            // a render server, asked before the workers; no URL for none
	Transport     http.RoundTripper // default: one with idle connections of at most 4 s
	CacheBytes    int64             // default 64 MiB
	Timeout       time.Duration     // for all calls of one text; default 5 s
	Hedge         time.Duration     // a second server is asked after this; default 1 s
	Calls         int               // texts whose calls are under way at one time; default 64
	ResponseBytes int64             // of an answer; default 32 MiB
}

func (o Options) withDefaults() Options {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.CacheBytes, 64<<20)
	def((*int64)(&o.Timeout), int64(5*time.Second))
	def((*int64)(&o.Hedge), int64(time.Second))
	def(&o.ResponseBytes, 32<<20)
	if o.Calls <= 0 {
		o.Calls = 64
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			MaxIdleConnsPerHost: o.Calls,
			// uvicorn closes idle connections after 5 s.
			IdleConnTimeout: 4 * time.Second,
		}
	}
	return o
}

// Source turns prompts into tokens.
type Source struct {
	opts   Options
	client *http.Client
	cache  *cache
	flight singleflight.Group
	slots  chan struct{} // one for each text whose calls are under way
	queued atomic.Int64  // texts that wait for a slot or have one
	turn   atomic.Uint32 // spreads calls over equal servers
	count  counters

	ctx  context.Context // of all calls
	stop context.CancelFunc

	mu       sync.Mutex
	closed   bool
	calls    sync.WaitGroup         // of texts; Add happens under mu
	noRender map[renderer]time.Time // until when the render routes are not asked
}

// New returns a Source. Close must be called at the end.
func New(o Options) *Source {
	o = o.withDefaults()
	s := &Source{
		opts:  o,
		cache: newCache(o.CacheBytes),
		slots: make(chan struct{}, o.Calls),
		client: &http.Client{
			Transport: o.Transport,
			// A redirect would send the prompt to a server that nobody named.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		noRender: make(map[renderer]time.Time),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends the calls under way and waits for them. After it Tokens finds the tokens of
// the body and of the cache only.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.calls.Wait()
	s.client.CloseIdleConnections()
}

// key names a text: the SHA-256 of the kind of call and the body that is sent.
type key [sha256.Size]byte

func (a *ask) key() (k key) {
	h := sha256.New()
	h.Write([]byte(a.path))
	h.Write([]byte{0})
	h.Write(a.body)
	h.Sum(k[:0])
	return k
}

// Tokens returns the tokens of the first prompt of a request. model is the name that the
// servers are asked for. The error is ctx's.
func (s *Source) Tokens(ctx context.Context, model string, r *openai.Request) (Prompt, error) {
	if r.Tokens != nil {
		s.count.given.Add(1)
		return Prompt{Tokens: r.Tokens, Exact: true}, nil
	}
	p, err := s.text(ctx, model, r)
	switch {
	case err != nil:
	case p.Tokens == nil:
		s.count.none.Add(1)
	case p.Exact:
		s.count.exact.Add(1)
	default:
		s.count.approximate.Add(1)
	}
	return p, err
}

// text returns the tokens of a text or a chat.
func (s *Source) text(ctx context.Context, model string, r *openai.Request) (Prompt, error) {
	if r.NoPrompt != "" {
		return Prompt{Reason: r.NoPrompt}, nil
	}
	if why := unseen(r); why != "" {
		return Prompt{Reason: why}, nil
	}
	asked := s.plan(model, r)
	if len(asked) == 0 {
		s.count.noServer.Add(1)
		return Prompt{Reason: "no server tokenizes this prompt"}, nil
	}
	k := asked[0].key()
	if p, ok := s.cache.get(k); ok {
		s.count.hits.Add(1)
		return p, nil
	}
	s.count.misses.Add(1)
	return s.share(ctx, k, asked)
}

// unseen says why a prompt is more than the body shows.
func unseen(r *openai.Request) string {
	switch {
	case r.PreviousResponse != "":
		return "the prompt has a stored response"
	case r.Conversation:
		return "the prompt has a stored conversation"
	}
	return ""
}

// share makes the calls of a text, or waits for those that another request makes.
func (s *Source) share(ctx context.Context, k key, asked []ask) (Prompt, error) {
	first := false
	done := s.flight.DoChan(string(k[:]), func() (any, error) {
		first = true
		return s.fetch(k, asked), nil
	})
	select {
	case res := <-done:
		if !first {
			s.count.shared.Add(1)
		}
		return res.Val.(Prompt), nil
	case <-ctx.Done():
		return Prompt{}, context.Cause(ctx)
	}
}

// fetch makes the calls of a text and stores what they find.
func (s *Source) fetch(k key, asked []ask) Prompt {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return Prompt{Reason: "the router is stopping"}
	}
	s.calls.Add(1)
	s.mu.Unlock()
	defer s.calls.Done()

	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	defer s.queued.Add(-1)
	if s.queued.Add(1) > int64(queue*s.opts.Calls) {
		s.count.busy.Add(1)
		return busy
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		s.count.busy.Add(1)
		return busy
	}
	s.count.running.Add(1)
	defer s.count.running.Add(-1)
	p := Prompt{}
	for i := range asked {
		if i > 0 {
			k = asked[i].key()
			if known, ok := s.cache.get(k); ok {
				return known
			}
		}
		if p = s.hedged(ctx, &asked[i]); p.Tokens != nil {
			s.cache.put(k, p)
			return p
		}
	}
	return p
}

// queue is how many texts may wait for each that is asked for.
const queue = 16

var busy = Prompt{Reason: "too many calls for tokens are under way"}

// rendersItself names models whose chats vLLM renders without the template that
// /tokenize uses.
func rendersItself(model string) bool {
	model = strings.ToLower(model)
	return strings.Contains(model, "gpt-oss") || strings.Contains(model, "kimi-k3")
}
