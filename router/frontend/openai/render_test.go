package openai_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

func TestBodiesForTheTokenizer(t *testing.T) {
	for _, c := range []struct {
		route            openai.Route
		body             string
		render, tokenize string
	}{
		{
			openai.Completions, `{"prompt":["a\n","b"],"temperature":1,"add_special_tokens":false}`,
			`{"model":"M","prompt":"a\n","add_special_tokens":false,"max_tokens":1,"mm_payload":"none"}`,
			`{"model":"M","prompt":"a\n","add_special_tokens":false}`,
		},
		{
			openai.Completions, `{"prompt":"a","truncate_prompt_tokens":-1,"max_tokens":9}`,
			`{"model":"M","prompt":"a","truncate_prompt_tokens":-1,"max_tokens":9,"mm_payload":"none"}`,
			`{"model":"M","prompt":"a","truncate_prompt_tokens":-1}`,
		},
		{openai.Completions, `{"prompt":[1]}`, ``, ``},
		{
			openai.Chat, `{"model":"x","n":2,"tools":[1],"messages":[],"max_tokens":9}`,
			`{"model":"M","messages":[],"tools":[1],"mm_payload":"none"}`,
			`{"model":"M","messages":[],"tools":[1]}`,
		},
		{
			openai.Messages, `{"messages":[],"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024}}`,
			`{"model":"M","messages":[],"thinking":{"type":"enabled","budget_tokens":1024},"max_tokens":2000,"mm_payload":"none"}`,
			`{"model":"M","messages":[]}`,
		},
		{openai.Responses, `{"input":"hi","max_output_tokens":9}`, `{"model":"M","input":"hi","mm_payload":"none"}`, `{"model":"M","messages":[{"role":"user","content":"hi"}]}`},
		{openai.Embeddings, `{"input":"hi"}`, ``, `{"model":"M","prompt":"hi"}`},
		{openai.Embeddings, `{"messages":[]}`, ``, ``},
	} {
		r, err := openai.Parse(c.route, []byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(r.RenderBody("M")); got != c.render {
			t.Errorf("%s %s: render %s, want %s", c.route, c.body, got, c.render)
		}
		if got := string(r.TokenizeBody("M")); got != c.tokenize {
			t.Errorf("%s %s: tokenize %s, want %s", c.route, c.body, got, c.tokenize)
		}
	}
}

// The engine hands documents, reasoning_effort and enable_thinking to the template, and
// /tokenize hands on only chat_template_kwargs.
func TestTemplateArgumentsReachTheTokenizer(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[],"reasoning_effort":"low"}`:                                                           `{"model":"M","messages":[],"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":true}}`,
		`{"messages":[],"reasoning_effort":"none","chat_template_kwargs":{"a":1,"reasoning_effort":"high"}}`: `{"model":"M","messages":[],"chat_template_kwargs":{"a":1,"reasoning_effort":"high","reasoning_effort":"none","enable_thinking":false},"reasoning_effort":"none"}`,
		`{"messages":[],"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":null}}`:           `{"model":"M","messages":[],"chat_template_kwargs":{"enable_thinking":null,"reasoning_effort":"low"},"reasoning_effort":"low"}`,
		`{"messages":[],"documents":[{"text":"x"}],"chat_template_kwargs":{}}`:                               `{"model":"M","messages":[],"chat_template_kwargs":{"documents":[{"text":"x"}]},"documents":[{"text":"x"}]}`,
		`{"messages":[],"documents":[],"chat_template_kwargs":7}`:                                            `{"model":"M","messages":[],"chat_template_kwargs":7,"documents":[]}`,
	} {
		r, err := openai.Parse(openai.Chat, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(r.TokenizeBody("M")); got != want || r.Approximate != "" {
			t.Errorf("%s: %s (%s), want %s", body, got, r.Approximate, want)
		}
	}
}

func TestMessagesBecomeAChat(t *testing.T) {
	for body, want := range map[string]string{
		`{"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"a"},{"type":"text","text":"b"}],"messages":[{"role":"user","content":"u"},{"role":"system","content":"late"}]}`: `{"model":"M","messages":[{"role":"system","content":"ab"},{"role":"user","content":"u"},{"role":"system","content":"late"}]}`,

		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object","a":1}}],"output_config":{"effort":"low"}}`: `{"model":"M","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","a":1}}}],"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":true}}`,

		`{"thinking":{"type":"disabled"},"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"x"},{"type":"tool_use","id":"c","name":"f","input":{"b":1,"a":2}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"r"},{"type":"text","text":"s"}]}]}]}`: `{"model":"M","messages":[{"role":"assistant","reasoning":"t","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]},{"role":"tool","content":"r\ns","tool_call_id":"c"}],"chat_template_kwargs":{"reasoning_effort":"none","enable_thinking":false}}`,

		`{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`:                        ``,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}`: ``,
		`{"messages":[7]}`: ``,
	} {
		checkConversion(t, openai.Messages, body, want)
	}
}

func TestResponsesBecomeAChat(t *testing.T) {
	for body, want := range map[string]string{
		`{"instructions":"s","input":[{"role":"user","content":[{"type":"input_text","text":"u"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}]}`: `{"model":"M","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"u"}]},{"role":"assistant","content":"a","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"r","tool_call_id":"c"}]}`,

		`{"input":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}],"tools":[{"type":"function","name":"f","parameters":{}}],"reasoning":{"effort":"high"}}`: `{"model":"M","messages":[{"role":"assistant","reasoning":"t","content":"a"},{"role":"assistant","content":"b"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"chat_template_kwargs":{"reasoning_effort":"high","enable_thinking":true}}`,

		`{"input":"x","tools":[{"type":"web_search"}]}`:                  ``,
		`{"input":"x","previous_input_messages":[]}`:                     ``,
		`{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`: ``,
		`{"input":[{"type":"computer_call"}]}`:                           ``,
		`{"input":[{"role":"assistant","content":[]}]}`:                  ``,
		`{"input":7}`: ``,
	} {
		checkConversion(t, openai.Responses, body, want)
	}
}

func checkConversion(t *testing.T, route openai.Route, body, want string) {
	t.Helper()
	r, err := openai.Parse(route, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.TokenizeBody("M")); got != want || r.Approximate == "" {
		t.Errorf("%s:\ngot  %s (%s)\nwant %s", body, got, r.Approximate, want)
	}
}
