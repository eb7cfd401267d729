package front

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// Ready is the first line of a stub.
type Ready struct {
	Ready  bool   `json:"ready"`
	HTTP   string `json:"http"`
	Events string `json:"events"`
	Replay string `json:"replay"`
}

// Counts are what a stub has counted. A stub answers each line of its input with them.
type Counts struct {
	Requests     int64 `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	// Renders are the calls for tokens of a prompt, RenderNanos the processor time of their
	// handlers.
	Renders     int64 `json:"renders"`
	RenderNanos int64 `json:"render_nanos"`
}

// stub is a worker server that computes nothing.
type stub struct {
	ready    Ready
	cache    *cache
	requests atomic.Int64
	prompts  atomic.Int64
	cached   atomic.Int64
	renders  atomic.Int64
	nanos    atomic.Int64
}

// Serve runs a stub, which stands for a vLLM server without a model, until in ends. It writes its
// addresses to out, and then its counters for each line on in. It is the main function of
// Options.Stub.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	events, err := zmqpub.New(zmqpub.Options{BufferSteps: 10_000})
	if err != nil {
		return err
	}
	defer events.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &stub{
		ready: Ready{Ready: true, HTTP: l.Addr().String(), Events: events.Events, Replay: events.Replay},
		cache: newCache(cacheBlocks, events.Publish),
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	defer server.Close() //nolint:errcheck // nothing is left to lose
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for asked := bufio.NewScanner(in); asked.Scan(); {
			lines <- struct{}{}
		}
	}()
	answers := json.NewEncoder(out)
	if err := answers.Encode(s.ready); err != nil {
		return err
	}
	for {
		select {
		case _, ok := <-lines:
			if !ok {
				return nil
			}
			if err := answers.Encode(s.counts()); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *stub) counts() Counts {
	return Counts{s.requests.Load(), s.prompts.Load(), s.cached.Load(), s.renders.Load(), s.nanos.Load()}
}

// handler returns the HTTP handler with the paths of a vLLM server that routers use. The answers
// about the server are fixed.
func (s *stub) handler() http.Handler {
	mux := http.NewServeMux()
	text := func(path, kind, body string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, body)
		})
	}
	const object = "application/json"
	text("/health", object, "")
	text("/ping", object, "")
	text("/version", object, `{"version":"0.32.0"}`)
	text("/load", object, `{"server_load":0}`)
	text("/v1/models", object, fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","owned_by":"vllm","root":%q,"parent":null,"max_model_len":131072}]}`, model, model))
	text("/metrics", "text/plain; version=0.0.4", fmt.Sprintf("# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"%d\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"%d\"} 1.0\n", blockSize, cacheBlocks))
	text("/kv_event_sources", object, fmt.Sprintf(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q,"topic":""}}`, s.ready.Events, s.ready.Replay))
	mux.HandleFunc("POST /tokenize", s.render(`{"count":%d,"max_model_len":131072,"tokens":%s}`))
	mux.HandleFunc("POST /v1/chat/completions/render", s.render(renderAnswer))
	mux.HandleFunc("POST /v1/completions/render", s.render("["+renderAnswer+"]"))
	mux.HandleFunc("POST /v1/chat/completions", s.complete)
	mux.HandleFunc("POST /v1/completions", s.complete)
	return mux
}

// renderAnswer is the part of a render route's answer that routers read.
const renderAnswer = `{"request_id":"r-%d","token_ids":%s,"sampling_params":{},"model":"` + model + `","stream":false}`

// body is what a stub reads of a request.
type body struct {
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Prompt        json.RawMessage `json:"prompt"`
	User          string          `json:"user"`
	Stream        bool            `json:"stream"`
	MaxTokens     int             `json:"max_tokens"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Transfer struct {
		Tokens []uint32 `json:"prompt_token_ids"`
	} `json:"kv_transfer_params"`
}

var errNoPrompt = errors.New("no prompt")

// tokens returns the tokens of the prompt in a request: those that the router passes on, those of
// chat messages, of a text, or given ids.
func (b *body) tokens() (out []uint32, err error) {
	switch {
	case len(b.Transfer.Tokens) > 0:
		return b.Transfer.Tokens, nil
	case len(b.Messages) > 0:
		for _, m := range b.Messages {
			out = tokenise(append(tokenise(out, m.Role), 1), m.Content)
		}
		return append(out, 2), nil
	case len(b.Prompt) == 0:
		return nil, errNoPrompt
	case b.Prompt[0] == '"':
		var text string
		err = json.Unmarshal(b.Prompt, &text)
		return tokenise(nil, text), err
	}
	err = json.Unmarshal(b.Prompt, &out)
	return out, err
}

// read decodes the body of a request and the tokens of its prompt. ok is false after it has
// answered with an error.
func read(w http.ResponseWriter, r *http.Request) (b body, tokens []uint32, ok bool) {
	err := json.NewDecoder(r.Body).Decode(&b)
	if err == nil {
		tokens, err = b.tokens()
	}
	if err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"message":%q,"type":"BadRequestError","code":400}}`, err)
	}
	return b, tokens, err == nil
}

// render returns a handler that answers with the tokens of a prompt. format takes their number
// and the JSON array.
func (s *stub) render(format string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		began := threadNanos()
		_, tokens, ok := read(w, r)
		if !ok {
			return
		}
		ids, err := json.Marshal(tokens)
		if err != nil {
			panic("BUG: numbers as JSON: " + err.Error())
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, format, len(tokens), ids)
		s.renders.Add(1)
		s.nanos.Add(max(0, threadNanos()-began))
	}
}

// complete answers a completion: it streams chunks at fixed times after the request arrived, each
// with the time when it was sent. A request of holdUser stays open after its first chunk.
func (s *stub) complete(w http.ResponseWriter, r *http.Request) {
	arrived := cluster.Now()
	b, tokens, ok := read(w, r)
	if !ok {
		return
	}
	cached := s.cache.admit(tokens)
	s.requests.Add(1)
	s.prompts.Add(int64(len(tokens)))
	s.cached.Add(int64(cached))
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		len(tokens), b.MaxTokens, len(tokens)+b.MaxTokens, cached)
	before, after := `{"index":0,"text":"`, `"}`
	if strings.HasPrefix(r.URL.Path, "/v1/chat") {
		before, after = `{"index":0,"delta":{"content":"`, `"}}`
	}
	if !b.Stream {
		fmt.Fprintf(w, `{"id":"c","choices":[],%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	out := http.NewResponseController(w)
	for i := range max(1, b.MaxTokens) {
		if wait(r.Context(), arrived+int64(firstDelay)+int64(i)*int64(chunkDelay)) != nil {
			return
		}
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chunk\",\"created\":1,\"model\":%q,\"choices\":[%s%s%s]}\n\n", model, before, stamp{arrived, cluster.Now()}, after)
		if out.Flush() != nil {
			return
		}
		if b.User == holdUser {
			<-r.Context().Done()
			return
		}
	}
	if b.StreamOptions.IncludeUsage {
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"choices\":[],%s}\n\n", usage)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// wait returns when cluster.Now reaches at. The error is that of ctx, when ctx ends first.
func wait(ctx context.Context, at int64) error {
	return cluster.Wait(ctx, time.Duration(at-cluster.Now()))
}

// threadNanos returns the processor time of the calling thread. A goroutine may have moved
// to another thread since; stubs have one processor, where that is rare.
func threadNanos() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		panic("BUG: the clock of the thread")
	}
	return ts.Nano()
}
