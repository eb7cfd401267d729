package tokens_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
)

// realCase is a request to a real engine. differs: /tokenize renders it in another way
// than the engine when the template of the model shows the member.
type realCase struct {
	name, model string
	route       openai.Route
	body        string
	differs     bool
}

func realCases(model, adapter string) []realCase {
	const tools = `"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]`
	const chat = `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Where is the \u00e9t\u00e9 block? 🙂"}]`
	cases := []realCase{
		{"text", model, openai.Completions, `{"prompt":"The yard holds\n blocks \ud83d\ude42"}`, false},
		{"text without special tokens", model, openai.Completions, `{"prompt":"The yard","add_special_tokens":false}`, false},
		{"texts", model, openai.Completions, `{"prompt":["one text","another"]}`, false},
		{"cut text", model, openai.Completions, `{"prompt":"one two three four five six","truncate_prompt_tokens":4}`, true},
		{"chat", model, openai.Chat, `{` + chat + `}`, false},
		{"chat with parts", model, openai.Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, false},
		{"tools", model, openai.Chat, `{` + tools + `,` + chat + `}`, false},
		{"tools, automatic", model, openai.Chat, `{"tool_choice":"auto",` + tools + `,` + chat + `}`, false},
		{"tools, none", model, openai.Chat, `{"tool_choice":"none",` + tools + `,` + chat + `}`, false},
		{"tool messages", model, openai.Chat, `{` + tools + `,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": \"b\"}"}}]},{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"r1"},{"type":"text","text":"r2"}]}]}`, false},
		{"continued", model, openai.Chat, `{"add_generation_prompt":false,"continue_final_message":true,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"I am"}]}`, false},
		{"template arguments", model, openai.Chat, `{"chat_template_kwargs":{"shout":true},` + chat + `}`, false},
		{"reasoning", model, openai.Chat, `{"messages":[{"role":"assistant","reasoning":"r","content":"c"},{"role":"user","content":"u"}]}`, false},
		{"reasoning_content", model, openai.Chat, `{"messages":[{"role":"assistant","reasoning_content":"r","content":"c"},{"role":"user","content":"u"}]}`, true},
		{"effort", model, openai.Chat, `{"reasoning_effort":"low",` + chat + `}`, false},
		{"effort and arguments", model, openai.Chat, `{"reasoning_effort":"none","chat_template_kwargs":{"shout":true,"reasoning_effort":"high"},` + chat + `}`, false},
		{"documents", model, openai.Chat, `{"documents":[{"title":"t","text":"x"}],` + chat + `}`, false},
		{"Anthropic's", model, openai.Messages, `{"system":"Be brief.","messages":[{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":""},{"type":"text","text":"x"},{"type":"tool_use","id":"c1","name":"f","input":{"b":1,"a":"z"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"r"},{"type":"text","text":"y"}]}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"b":{"type":"integer"}}}}],"tool_choice":{"type":"auto"}}`, true},
		{"responses", model, openai.Responses, `{"instructions":"Be brief.","reasoning":{"effort":"low"},"input":[{"role":"user","content":[{"type":"input_text","text":"u"}]},{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\": 1}"},{"type":"function_call_output","call_id":"c1","output":"r"}]}`, true},
		{"response format", model, openai.Chat, `{"response_format":{"type":"json_object"},` + chat + `}`, false},
	}
	if adapter != "" {
		cases = append(cases,
			realCase{"adapter, text", adapter, openai.Completions, `{"prompt":"The yard holds"}`, false},
			realCase{"adapter, chat", adapter, openai.Chat, `{` + chat + `}`, false})
	}
	return cases
}

// TestTokensAreTheEngines compares tokens with those that a running vLLM reports. It needs
// the base URL of a vLLM with --enable-scale-out and a tool call parser, and its model.
func TestTokensAreTheEngines(t *testing.T) {
	url, model := os.Getenv("BLOCKYARD_TEST_VLLM_URL"), os.Getenv("BLOCKYARD_TEST_VLLM_MODEL")
	if url == "" {
		t.Skip("BLOCKYARD_TEST_VLLM_URL names no server")
	}
	tokenize := open(t, tokens.Options{Servers: servers{{URL: url}}})
	render := open(t, tokens.Options{Servers: servers{{URL: url, Render: true}}})
	for _, c := range realCases(model, os.Getenv("BLOCKYARD_TEST_VLLM_ADAPTER")) {
		t.Run(c.name, func(t *testing.T) {
			p := ask(t, render, c.model, c.route, c.body)
			want := enginePrompt(t, url, c)
			if c.route == openai.Messages || c.route == openai.Responses {
				// The engine says how many tokens it computed and not which.
				if len(want) != len(p.Tokens) {
					t.Errorf("rendered %d tokens, want %d", len(p.Tokens), len(want))
				}
				want = p.Tokens
			}
			if !p.Exact || !slices.Equal(p.Tokens, want) {
				t.Errorf("rendered %v, want %v: %s", p.Tokens, want, p.Reason)
			}
			p = ask(t, tokenize, c.model, c.route, c.body)
			if equal := slices.Equal(p.Tokens, want); p.Exact && !equal || c.differs && p.Exact {
				t.Errorf("tokenized %v, exact %v, want %v", p.Tokens, p.Exact, want)
			} else if !p.Exact {
				t.Logf("approximate (%s): equal %v", p.Reason, equal)
			}
		})
	}
	for name, s := range map[string]*tokens.Source{"render": render, "tokenize": tokenize} {
		if st := s.Stats(); st.None != 0 || st.NoRender != 0 || st.Connect+st.Timeout+st.Refused+st.Status+st.BadAnswer != 0 {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

// enginePrompt returns the token ids that the engine says it computed.
func enginePrompt(t *testing.T, url string, c realCase) []uint32 {
	t.Helper()
	// The order of keys is part of the prompt: the body must not be encoded again.
	limit := `"max_tokens":1,"return_token_ids":true`
	if c.route == openai.Responses {
		limit = `"max_output_tokens":1`
	}
	body := strings.TrimSuffix(c.body, "}") + `,"model":"` + c.model + `",` + limit + `}`
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post(url+c.route.Path(), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, answer)
	}
	var got struct {
		Chat    []uint32 `json:"prompt_token_ids"`
		Choices []struct {
			Completion []uint32 `json:"prompt_token_ids"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	switch c.route {
	case openai.Chat:
		return got.Chat
	case openai.Completions:
		return got.Choices[0].Completion
	}
	usage, ok := openai.ParseUsage(answer)
	if !ok || !usage.HasCached {
		t.Errorf("usage %+v in %s", usage, answer)
	}
	return make([]uint32, usage.Prompt)
}
