package tokens

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// ask is one way to get the tokens of a text: a path and a body for any of the servers.
type ask struct {
	model   string
	path    string
	body    []byte
	render  bool
	servers []Server
	// prompt is the answer without its tokens.
	prompt Prompt
}

const tokenizePath = "/tokenize"

// plan returns the ways to get the tokens of a text, the best first.
func (s *Source) plan(model string, r *openai.Request) []ask {
	var servers []Server
	if s.opts.Servers != nil {
		servers = s.opts.Servers.Tokenizers(model)
	}
	turn := int(s.turn.Add(1) & 0xffff)
	asked := make([]ask, 0, 2)
	if body := r.RenderBody(model); body != nil {
		a := ask{model: model, path: r.Route.Path() + "/render", body: body, render: true}
		if s.opts.Render.URL != "" && s.renders(s.opts.Render.URL, model) {
			a.servers = append(a.servers, s.opts.Render)
		}
		a.servers = append(a.servers, rotate(servers, turn, func(sv *Server) bool {
			return sv.Render && s.renders(sv.URL, model)
		})...)
		a.prompt = Prompt{Exact: true, Rendered: r.Route != openai.Completions && !r.Multimodal && !r.Echo}
		asked = add(asked, a)
	}
	if len(asked) > 0 && r.Approximate != "" {
		return asked // The conversion costs more than a rare failure of a render route.
	}
	if body := r.TokenizeBody(model); body != nil {
		a := ask{model: model, path: tokenizePath, body: body, servers: rotate(servers, turn, func(*Server) bool { return true })}
		a.prompt.Reason = r.Approximate
		if r.Route == openai.Chat && rendersItself(model) {
			a.prompt.Reason = cmp.Or(r.Approximate, "the model's chats are not rendered from a template")
		}
		a.prompt.Exact = a.prompt.Reason == ""
		asked = add(asked, a)
	}
	return asked
}

// add adds a way that has a server.
func add(asked []ask, a ask) []ask {
	if len(a.servers) == 0 {
		return asked
	}
	return append(asked, a)
}

// rotate returns at most two of the servers that fit, beginning at another one each turn.
func rotate(servers []Server, turn int, fits func(*Server) bool) []Server {
	var chosen []Server
	for i := range servers {
		sv := &servers[(turn+i)%len(servers)]
		if fits(sv) {
			if chosen = append(chosen, *sv); len(chosen) == attempts {
				break
			}
		}
	}
	return chosen
}

// attempts is the number of servers that are asked for one text in one way.
const attempts = 2

// outcome is how a call ended. A final outcome is the same on any server.
type outcome struct {
	prompt Prompt
	final  bool
}

// hedged asks the first server, and the second when the first fails or is slow. The first
// answer wins.
func (s *Source) hedged(ctx context.Context, a *ask) Prompt {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	servers := a.servers[:min(len(a.servers), attempts)]
	results := make(chan outcome, len(servers))
	begun, open := 0, 0
	begin := func() {
		sv := servers[begun]
		begun, open = begun+1, open+1
		s.calls.Add(1) // the caller holds one: it is not 0
		go func() {
			defer s.calls.Done()
			results <- s.call(ctx, a, sv)
		}()
	}
	begin()
	slow := time.NewTimer(s.opts.Hedge)
	defer slow.Stop()
	var last outcome
	for open > 0 {
		select {
		case last = <-results:
			open--
			if last.prompt.Tokens != nil || last.final {
				return last.prompt
			}
		case <-slow.C:
		}
		if begun < len(servers) && ctx.Err() == nil {
			s.count.hedges.Add(1)
			begin()
		}
	}
	return last.prompt
}

// call asks one server.
func (s *Source) call(ctx context.Context, a *ask, sv Server) outcome {
	counter := &s.count.tokenizes
	if a.render {
		counter = &s.count.renders
	}
	counter.Add(1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, sv.URL+a.path, bytes.NewReader(a.body))
	if err != nil {
		s.count.connect.Add(1)
		return failed("%s: %v", sv.URL, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if sv.Authorization != "" {
		req.Header.Set("Authorization", sv.Authorization)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return s.lost(ctx, sv, err)
	}
	defer resp.Body.Close()
	answer, err := readAll(resp, s.opts.ResponseBytes)
	switch {
	case err != nil:
		return s.lost(ctx, sv, err)
	case int64(len(answer)) > s.opts.ResponseBytes:
		s.count.badAnswer.Add(1)
		return failed("%s: the answer of %s is larger than %d bytes", sv.URL, a.path, s.opts.ResponseBytes)
	case resp.StatusCode != http.StatusOK:
		return s.refused(a, sv, resp.StatusCode)
	}
	return s.read(a, sv, answer)
}

// readAll reads an answer up to one byte beyond the limit.
func readAll(resp *http.Response, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if n := resp.ContentLength; n > 0 && n < 1<<20 {
		b.Grow(int(n) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(resp.Body, limit+1))
	return b.Bytes(), err
}

// read takes the tokens out of an answer.
func (s *Source) read(a *ask, sv Server, answer []byte) outcome {
	got, err := openai.ParseTokenAnswer(answer)
	if err == nil && len(got.Tokens) == 0 {
		err = errors.New("no tokens")
	}
	p := a.prompt
	if err == nil && got.Features != nil {
		p.Rendered = false
		p.Objects, err = objects(got.Features, len(got.Tokens))
	}
	if err != nil {
		s.count.badAnswer.Add(1)
		return failed("%s: the answer of %s: %v", sv.URL, a.path, err)
	}
	p.Tokens = slices.Clip(got.Tokens)
	return outcome{prompt: p}
}

// lost counts a call without an answer. A call that lost against another is not counted.
func (s *Source) lost(ctx context.Context, sv Server, err error) outcome {
	var slow net.Error
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		s.count.timeout.Add(1)
		return failed("%s: no tokens in time", sv.URL)
	default:
		s.count.connect.Add(1)
	}
	return failed("%s: %v", sv.URL, err)
}

// refused counts an answer with another status than 200. A worker without the render
// routes answers 403, a server of another kind 404. Both may still have /tokenize.
func (s *Source) refused(a *ask, sv Server, status int) outcome {
	// The answer may quote the prompt: the reason does not.
	out := failed("%s: %s answered %d", sv.URL, a.path, status)
	switch {
	case a.render && (status == http.StatusForbidden || status == http.StatusNotFound || status == http.StatusNotImplemented):
		s.count.noRender.Add(1)
		s.rememberNoRender(sv.URL, a.model)
	case status >= 400 && status < 500:
		s.count.refused.Add(1)
		// The engine refuses such a prompt too; another server says the same.
		out.final = status == http.StatusBadRequest
	default:
		s.count.status.Add(1)
	}
	return out
}

// renderer is a server and a model that it was asked to render for.
type renderer struct{ url, model string }

const (
	// noRenderFor is how long a server without render routes is not asked for them.
	noRenderFor = 30 * time.Second
	// noRenderMost bounds what is remembered of them.
	noRenderMost = 1024
)

// renders reports whether a server may be asked to render.
func (s *Source) renders(url, model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.noRender[renderer{url, model}]
	return !ok || time.Now().After(until)
}

func (s *Source) rememberNoRender(url, model string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.noRender) >= noRenderMost {
		clear(s.noRender)
	}
	s.noRender[renderer{url, model}] = time.Now().Add(noRenderFor)
}

func failed(format string, args ...any) outcome {
	return outcome{prompt: Prompt{Reason: fmt.Sprintf(format, args...)}}
}

// objects reads the multimodal objects of a rendered prompt.
func objects(features []byte, tokens int) ([]Object, error) {
	var f struct {
		Hashes map[string][]string `json:"mm_hashes"`
		Places map[string][]struct {
			Offset int `json:"offset"`
			Length int `json:"length"`
		} `json:"mm_placeholders"`
	}
	if err := json.Unmarshal(features, &f); err != nil {
		return nil, fmt.Errorf("features: %w", err)
	}
	var all []Object
	for modality, hashes := range f.Hashes {
		places := f.Places[modality]
		if len(places) != len(hashes) {
			return nil, fmt.Errorf("features: %d places for %d hashes of %s", len(places), len(hashes), modality)
		}
		for i, place := range places {
			if place.Offset < 0 || place.Length < 0 || place.Offset > tokens-place.Length {
				return nil, fmt.Errorf("features: %s at %d+%d of %d tokens", modality, place.Offset, place.Length, tokens)
			}
			all = append(all, Object{hashes[i], place.Offset, place.Length})
		}
	}
	slices.SortFunc(all, func(a, b Object) int { return cmp.Compare(a.Offset, b.Offset) })
	return all, nil
}
