package tokens_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTokensComeFromTheBestSource(t *testing.T) {
	const chat = `{"messages":[{"role":"user","content":"x"}]}`
	const messages = `[{"role":"user","content":"x"}]`
	for name, c := range map[string]struct {
		render bool
		model  string
		route  openai.Route
		body   string
		want   tokens.Prompt
	}{
		"ids":                       {false, "m", openai.Completions, `{"prompt":[7,8]}`, tokens.Prompt{Tokens: []uint32{7, 8}, Exact: true}},
		"text":                      {false, "m", openai.Completions, `{"prompt":"a\u00e9"}`, tokens.Prompt{Tokens: ids("aé"), Exact: true}},
		"text, rendered":            {true, "m", openai.Completions, `{"prompt":"ab"}`, tokens.Prompt{Tokens: ids("ab"), Exact: true}},
		"chat":                      {false, "m", openai.Chat, chat, tokens.Prompt{Tokens: ids(messages), Exact: true}},
		"chat, rendered":            {true, "m", openai.Chat, chat, tokens.Prompt{Tokens: ids(messages), Exact: true, Rendered: true}},
		"chat, rendered for echo":   {true, "m", openai.Chat, `{"echo":true,` + chat[1:], tokens.Prompt{Tokens: ids(messages), Exact: true}},
		"adapter":                   {false, "adapter", openai.Completions, `{"prompt":"ab"}`, tokens.Prompt{Tokens: ids("ab"), Exact: true}},
		"effort":                    {false, "m", openai.Chat, `{"reasoning_effort":"low",` + chat[1:], tokens.Prompt{Tokens: ids(messages), Exact: true}},
		"cut":                       {false, "m", openai.Chat, `{"truncate_prompt_tokens":9,` + chat[1:], tokens.Prompt{Tokens: ids(messages), Reason: "truncate_prompt_tokens changes the tokens"}},
		"Anthropic's":               {false, "m", openai.Messages, chat, tokens.Prompt{Tokens: ids(messages), Reason: "/tokenize does not read the bodies of /v1/messages"}},
		"effort, rendered":          {true, "m", openai.Chat, `{"reasoning_effort":"low",` + chat[1:], tokens.Prompt{Tokens: ids(messages), Exact: true, Rendered: true}},
		"Anthropic's, rendered":     {true, "m", openai.Messages, `{"system":"s","messages":[]}`, tokens.Prompt{Tokens: ids("s[]"), Exact: true, Rendered: true}},
		"responses, with a history": {true, "m", openai.Responses, `{"input":"x","previous_response_id":"r"}`, tokens.Prompt{Reason: "the prompt has a stored response"}},
		"embeds":                    {true, "m", openai.Completions, `{"prompt_embeds":"AA"}`, tokens.Prompt{Reason: "prompt_embeds have no token ids"}},
		"empty":                     {true, "m", openai.Completions, `{"prompt":[]}`, tokens.Prompt{Reason: "the prompt is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, c.render)
			s := open(t, tokens.Options{Servers: workers(w)})
			if diff := cmp.Diff(c.want, ask(t, s, c.model, c.route, c.body)); diff != "" {
				t.Error(diff)
			}
			want := tokens.Stats{Exact: 1}
			switch {
			case c.want.Tokens == nil:
				want = tokens.Stats{None: 1}
			case name == "ids":
				want = tokens.Stats{Given: 1}
			case !c.want.Exact:
				want = tokens.Stats{Approximate: 1}
			}
			got := s.Stats()
			got = tokens.Stats{Given: got.Given, Exact: got.Exact, Approximate: got.Approximate, None: got.None}
			if got != want {
				t.Errorf("counted %+v, want %+v", got, want)
			}
		})
	}
}

func TestModelsThatRenderThemselvesAreApproximateUnlessRendered(t *testing.T) {
	w := newWorker(t, false)
	w.models = []string{"openai/gpt-oss-20b"}
	s := open(t, tokens.Options{Servers: workers(w)})
	p := ask(t, s, w.models[0], openai.Chat, `{"messages":[]}`)
	if p.Exact || p.Reason != "the model's chats are not rendered from a template" || len(p.Tokens) != 2 {
		t.Errorf("%+v", p)
	}
	if p := ask(t, s, w.models[0], openai.Completions, `{"prompt":"a"}`); !p.Exact {
		t.Errorf("%+v", p)
	}
}

func TestARenderServerIsAskedFirst(t *testing.T) {
	renderer, w := newWorker(t, true), newWorker(t, false)
	s := open(t, tokens.Options{Servers: workers(w), Render: tokens.Server{URL: renderer.URL}})
	if p := ask(t, s, "m", openai.Chat, `{"messages":[],"temperature":1}`); !p.Rendered {
		t.Errorf("%+v", p)
	}
	want := []string{`/v1/chat/completions/render {"model":"m","messages":[],"mm_payload":"none"}`}
	if diff := cmp.Diff(want, renderer.seen()); diff != "" {
		t.Error(diff)
	}
	// Without the render server the worker has to do.
	renderer.fail.Store(500)
	if p := ask(t, s, "m", openai.Chat, `{"messages":[1]}`); !p.Exact || p.Rendered {
		t.Errorf("%+v", p)
	}
	if got := w.seen(); len(got) != 1 || got[0] != `/tokenize {"model":"m","messages":[1]}` {
		t.Errorf("the worker saw %q", got)
	}
}

func TestAServerWithoutRenderRoutesIsNotAskedAgain(t *testing.T) {
	w := newWorker(t, false)
	list := workers(w)
	list[0].Render = true // an outdated list
	s := open(t, tokens.Options{Servers: list})
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"b"}`} {
		if p := ask(t, s, "m", openai.Completions, body); !p.Exact {
			t.Errorf("%+v", p)
		}
	}
	if st := s.Stats(); st.NoRender != 1 || st.Renders != 1 || st.Tokenizes != 2 {
		t.Errorf("%+v", st)
	}
}

func TestEqualTextsAreAskedForOnce(t *testing.T) {
	w := newWorker(t, false)
	release := w.hold()
	s := open(t, tokens.Options{Servers: workers(w)})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			// The temperature has no part in the tokens.
			p, err := s.Tokens(context.Background(), "m", parse(t, openai.Completions, `{"prompt":"abc","temperature":0.`+string(rune('0'+i))+`}`))
			if err != nil || len(p.Tokens) != 3 {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
	waitFor(t, func() bool { return s.Stats().Misses == 10 && len(w.seen()) == 1 })
	release()
	wg.Wait()
	ask(t, s, "m", openai.Completions, `{"prompt":"abc"}`)
	if st := s.Stats(); st.Tokenizes != 1 || st.Shared != 9 || st.Hits != 1 || st.Misses != 10 || st.Exact != 11 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
	// Another model and another route are other texts.
	ask(t, s, "adapter", openai.Completions, `{"prompt":"abc"}`)
	ask(t, s, "m", openai.Completions, `{"prompt":"abc","add_special_tokens":false}`)
	if st := s.Stats(); st.Tokenizes != 3 || st.Entries != 3 {
		t.Errorf("%+v", st)
	}
}

func TestACallerThatLeavesDoesNotEndTheCallOfOthers(t *testing.T) {
	w := newWorker(t, false)
	release := w.hold()
	s := open(t, tokens.Options{Servers: workers(w)})
	r := parse(t, openai.Completions, `{"prompt":"abc"}`)
	leaving, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Tokens(leaving, "m", r)
		left <- err
	}()
	waitFor(t, func() bool { return len(w.seen()) == 1 })
	stayed := make(chan tokens.Prompt, 1)
	go func() {
		p, _ := s.Tokens(context.Background(), "m", r)
		stayed <- p
	}()
	waitFor(t, func() bool { return s.Stats().Misses == 2 })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	release()
	if p := <-stayed; len(p.Tokens) != 3 || len(w.seen()) != 1 {
		t.Errorf("%+v after %d calls", p, len(w.seen()))
	}
}

func TestFailuresAreCountedAndNotCached(t *testing.T) {
	gone := newWorker(t, false)
	gone.Close()
	for name, c := range map[string]struct {
		prepare func(w *worker)
		servers func(w *worker) servers
		body    string
		want    tokens.Stats
	}{
		"500":        {func(w *worker) { w.fail.Store(500) }, nil, "a", tokens.Stats{Status: 1}},
		"redirect":   {func(w *worker) { w.fail.Store(302) }, nil, "a", tokens.Stats{Status: 1}},
		"too long":   {nil, nil, "too long", tokens.Stats{Refused: 1}},
		"no model":   {func(w *worker) { w.models = nil }, nil, "a", tokens.Stats{Refused: 1}},
		"nonsense":   {func(w *worker) { w.answer.Store("<html>") }, nil, "a", tokens.Stats{BadAnswer: 1}},
		"no tokens":  {func(w *worker) { w.answer.Store(`{"tokens":[]}`) }, nil, "a", tokens.Stats{BadAnswer: 1}},
		"negative":   {func(w *worker) { w.answer.Store(`{"tokens":[-1]}`) }, nil, "a", tokens.Stats{BadAnswer: 1}},
		"large":      {func(w *worker) { w.answer.Store(`{"tokens":[` + strings.Repeat("1,", 600) + `1]}`) }, nil, "a", tokens.Stats{BadAnswer: 1}},
		"gone":       {nil, func(*worker) servers { return workers(gone) }, "a", tokens.Stats{Connect: 1}},
		"bad URL":    {nil, func(*worker) servers { return servers{{URL: "http://a b"}} }, "a", tokens.Stats{Connect: 1}},
		"no servers": {nil, func(*worker) servers { return nil }, "a", tokens.Stats{NoServer: 1}},
		"never":      {func(w *worker) { w.hold() }, nil, "a", tokens.Stats{Timeout: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, false)
			if c.prepare != nil {
				c.prepare(w)
			}
			list := workers(w)
			if c.servers != nil {
				list = c.servers(w)
			}
			timeout := time.Minute
			if c.want.Timeout > 0 {
				timeout = 50 * time.Millisecond
			}
			s := open(t, tokens.Options{Servers: list, ResponseBytes: 1024, Timeout: timeout})
			for round := uint64(1); round <= 2; round++ {
				p := ask(t, s, "m", openai.Completions, `{"prompt":"`+c.body+`"}`)
				if p.Tokens != nil || p.Reason == "" || p.Exact {
					t.Errorf("%+v", p)
				}
				st := s.Stats()
				got := tokens.Stats{Status: st.Status, Refused: st.Refused, BadAnswer: st.BadAnswer, Connect: st.Connect, NoServer: st.NoServer, Timeout: st.Timeout, Busy: st.Busy}
				want := tokens.Stats{Status: round * c.want.Status, Refused: round * c.want.Refused, BadAnswer: round * c.want.BadAnswer, Connect: round * c.want.Connect, NoServer: round * c.want.NoServer, Timeout: round * c.want.Timeout}
				if got != want || st.None != round || st.Entries != 0 {
					t.Errorf("round %d: %+v", round, st)
				}
			}
		})
	}
}

func TestASecondServerAnswersForTheFirst(t *testing.T) {
	for name, prepare := range map[string]func(w *worker){
		"that fails":   func(w *worker) { w.fail.Store(500) },
		"that is gone": func(w *worker) { w.Close() },
		"that is slow": func(w *worker) { w.hold() },
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newWorker(t, false), newWorker(t, false)
			prepare(bad)
			slow := name == "that is slow"
			hedge := time.Minute
			if slow {
				hedge = 10 * time.Millisecond
			}
			s := open(t, tokens.Options{Servers: workers(bad, good, good), Hedge: hedge})
			for _, text := range []string{"a", "b", "c", "d", "e", "f"} {
				if p := ask(t, s, "m", openai.Completions, `{"prompt":"`+text+`"}`); len(p.Tokens) != 1 {
					t.Errorf("%+v", p)
				}
			}
			// Calls begin at each server in turn. A good server may be slow too.
			if st := s.Stats(); st.Hedges < 2 || st.Hedges > 2 && !slow || st.None != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestARefusedPromptIsNotAskedForTwice(t *testing.T) {
	a, b := newWorker(t, false), newWorker(t, false)
	s := open(t, tokens.Options{Servers: workers(a, b)})
	ask(t, s, "m", openai.Completions, `{"prompt":"too long"}`)
	if n := len(a.seen()) + len(b.seen()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestCallsAtOneTimeAreBounded(t *testing.T) {
	w := newWorker(t, false)
	release := w.hold()
	s := open(t, tokens.Options{Servers: workers(w), Calls: 1, Hedge: time.Minute, Timeout: time.Minute})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := s.Tokens(context.Background(), "m", parse(t, openai.Completions, `{"prompt":"`+strings.Repeat("x", i+1)+`"}`))
			if err != nil {
				t.Error(err)
			}
		})
	}
	// One text is asked for, 15 wait, and the others are told at once.
	waitFor(t, func() bool { st := s.Stats(); return st.Busy == 4 && st.None == 4 && st.Running == 1 })
	release()
	wg.Wait()
	if st := s.Stats(); st.Exact != 16 || st.Tokenizes != 16 || st.None != 4 || w.peak.Load() != 1 {
		t.Errorf("%+v, %d calls at one time", st, w.peak.Load())
	}
}

func TestATextThatWaitsTooLongIsGivenUp(t *testing.T) {
	w := newWorker(t, false)
	defer w.hold()()
	s := open(t, tokens.Options{Servers: workers(w), Calls: 1, Timeout: time.Second})
	first := make(chan tokens.Prompt, 1)
	go func() {
		p, _ := s.Tokens(context.Background(), "m", parse(t, openai.Completions, `{"prompt":"a"}`))
		first <- p
	}()
	waitFor(t, func() bool { return s.Stats().Running == 1 })
	if p := ask(t, s, "m", openai.Completions, `{"prompt":"b"}`); p.Tokens != nil || p.Reason == "" {
		t.Errorf("%+v", p)
	}
	if p := <-first; p.Tokens != nil {
		t.Errorf("%+v", p)
	}
	if st := s.Stats(); st.Busy+st.Timeout != 2 || st.Timeout == 0 {
		t.Errorf("%+v", st)
	}
}

func TestTheCacheKeepsItsBound(t *testing.T) {
	w := newWorker(t, false)
	// An entry takes 256 bytes and 4 for each token.
	s := open(t, tokens.Options{Servers: workers(w), CacheBytes: 3 * (256 + 40)})
	text := func(i int) string { return `{"prompt":"012345678` + string(rune('a'+i)) + `"}` }
	for i := range 3 {
		ask(t, s, "m", openai.Completions, text(i))
	}
	ask(t, s, "m", openai.Completions, text(0)) // used again: b is the oldest now
	ask(t, s, "m", openai.Completions, text(3))
	ask(t, s, "m", openai.Completions, text(0))
	if st := s.Stats(); st.Entries != 3 || st.Bytes != 3*(256+40) || st.Evictions != 1 || st.Hits != 2 {
		t.Errorf("%+v", st)
	}
	ask(t, s, "m", openai.Completions, text(1))
	if st := s.Stats(); st.Hits != 2 || st.Evictions != 2 {
		t.Errorf("%+v", st)
	}
	ask(t, s, "m", openai.Completions, `{"prompt":"`+strings.Repeat("long ", 500)+`"}`)
	if st := s.Stats(); st.Entries != 3 || st.Evictions != 2 {
		t.Errorf("a text larger than the cache: %+v", st)
	}
}

func TestRenderedObjectsHaveTheirPlaces(t *testing.T) {
	w := newWorker(t, true)
	w.answer.Store(`{"token_ids":[1,9,9,2,8,3],"features":{"mm_hashes":{"image":["hi"],"audio":["ha"]},"mm_placeholders":{"image":[{"offset":4,"length":1}],"audio":[{"offset":1,"length":2}]},"kwargs_data":null}}`)
	s := open(t, tokens.Options{Servers: workers(w)})
	got := ask(t, s, "m", openai.Chat, `{"messages":[{"content":[{"type":"image_url"}]}]}`)
	want := tokens.Prompt{Tokens: []uint32{1, 9, 9, 2, 8, 3}, Exact: true, Objects: []tokens.Object{{Hash: "ha", Offset: 1, Length: 2}, {Hash: "hi", Offset: 4, Length: 1}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, features := range []string{
		`{"mm_hashes":{"image":["h"]},"mm_placeholders":{}}`,
		`{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}`,
		`{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":-1,"length":1}]}}`,
		`[]`,
	} {
		w.answer.Store(`{"token_ids":[1],"features":` + features + `}`)
		if p := ask(t, s, "m", openai.Responses, `{"input":`+"\""+`x"}`); p.Tokens != nil {
			t.Errorf("%s: %+v", features, p)
		}
	}
}

func TestCloseEndsCalls(t *testing.T) {
	w := newWorker(t, false)
	defer w.hold()()
	s := tokens.New(tokens.Options{Servers: workers(w)})
	done := make(chan tokens.Prompt, 1)
	go func() {
		p, _ := s.Tokens(context.Background(), "m", parse(t, openai.Completions, `{"prompt":"a"}`))
		done <- p
	}()
	waitFor(t, func() bool { return len(w.seen()) == 1 })
	s.Close()
	if p := <-done; p.Tokens != nil || p.Reason == "" {
		t.Errorf("%+v", p)
	}
	if p := ask(t, s, "m", openai.Completions, `{"prompt":"b"}`); p.Reason != "the router is stopping" {
		t.Errorf("%+v", p)
	}
}
