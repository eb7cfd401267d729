package openai_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

func yes() *bool { on := true; return &on }
func no() *bool  { on := false; return &on }

func TestParseReadsWhatRoutingNeeds(t *testing.T) {
	for _, c := range []struct {
		route openai.Route
		body  string
		want  openai.Request
	}{
		{
			openai.Completions,
			`{"model":"m","prompt":"hi \u0041","max_tokens":5,"stream":true,"stream_options":{"include_usage":true,"x":1}}`,
			openai.Request{Model: "m", Text: "hi A", Prompts: 1, MaxTokens: 5, Stream: true, IncludeUsage: yes(), StreamOptions: json.RawMessage(`{"include_usage":true,"x":1}`)},
		},
		{openai.Completions, `{"prompt":[0,1,4294967295]}`, openai.Request{Tokens: []uint32{0, 1, 4294967295}, Prompts: 1, MaxTokens: 16}},
		{openai.Completions, `{"prompt":[[1,2],[3]],"max_tokens":null}`, openai.Request{Tokens: []uint32{1, 2}, Prompts: 2}},
		{openai.Completions, `{"prompt":["a","b","c"],"n":2}`, openai.Request{Text: "a", Prompts: 3, MaxTokens: 16, N: 2}},
		{openai.Completions, `{"prompt":[]}`, openai.Request{NoPrompt: "the prompt is empty", MaxTokens: 16}},
		{openai.Completions, `{"prompt":[[]]}`, openai.Request{NoPrompt: "the prompt is empty", Prompts: 1, MaxTokens: 16}},
		{openai.Completions, `{}`, openai.Request{NoPrompt: "the body has no prompt", MaxTokens: 16}},
		{openai.Completions, `{"prompt":"a","prompt_embeds":"AAAA"}`, openai.Request{NoPrompt: "prompt_embeds have no token ids", Prompts: 1, MaxTokens: 16}},
		{
			openai.Completions,
			`{"prompt":"","echo":true,"logprobs":0,"best_of":3,"use_beam_search":true,"prompt_logprobs":0,"truncate_prompt_tokens":8,"return_token_ids":true}`,
			openai.Request{Prompts: 1, MaxTokens: 16, Echo: true, Logprobs: true, BestOf: 3, BeamSearch: true, PromptLogprobs: true, ReturnTokenIDs: true, Approximate: "truncate_prompt_tokens changes the tokens"},
		},
		{
			openai.Chat,
			` { "mod\u0065l" : "m", "messages":[{"role":"user","content":"x"}], "user":"u","cache_salt":"s","session_id":"i","prompt_cache_key":"k","priority":-3,"max_tokens":9,"max_completion_tokens":7.0,"min_tokens":1,"kv_transfer_params":{"a":1},"logprobs":false,"top_logprobs":null } `,
			openai.Request{
				Model: "m", Chat: json.RawMessage(`{"messages":[{"role":"user","content":"x"}]}`), Prompts: 1,
				User: "u", Salt: "s", Session: "i", CacheKey: "k", Priority: -3, MaxTokens: 7, MinTokens: 1, KVTransfer: true,
			},
		},
		{
			openai.Chat,
			`{"temperature":0.1,"tools":[1],"tool_choice":"auto","messages":[],"stream_options":{"include_usage":true,"include_usage":false,"continuous_usage_stats":true}}`,
			openai.Request{Chat: json.RawMessage(`{"messages":[],"tools":[1],"tool_choice":"auto"}`), Prompts: 1, IncludeUsage: no(), ContinuousUsage: true, StreamOptions: json.RawMessage(`{"include_usage":true,"include_usage":false,"continuous_usage_stats":true}`)},
		},
		{
			openai.Responses,
			`{"input":"hi","instructions":"be","store":false,"background":true,"previous_response_id":"resp_1","max_output_tokens":3,"reasoning":{"effort":"low"}}`,
			openai.Request{
				Chat: json.RawMessage(`{"input":"hi","instructions":"be","reasoning":{"effort":"low"}}`), Prompts: 1, Background: true,
				PreviousResponse: "resp_1", MaxTokens: 3, Approximate: "/tokenize does not read the bodies of /v1/responses",
			},
		},
		{openai.Responses, `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, openai.Request{
			Chat: json.RawMessage(`{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`), Prompts: 1, Store: true, Multimodal: true, Approximate: "/tokenize does not read the bodies of /v1/responses",
		}},
		{openai.Messages, `{"metadata":{"user_id":"u","x":{}},"messages":[]}`, openai.Request{
			User: "u", Chat: json.RawMessage(`{"messages":[]}`), Prompts: 1, Approximate: "/tokenize does not read the bodies of /v1/messages",
		}},
		{openai.Messages, `{"model":"m","max_tokens":4,"system":"s","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}`, openai.Request{
			Model: "m", MaxTokens: 4, Chat: json.RawMessage(`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}],"system":"s"}`),
			Prompts: 1, Multimodal: true, Approximate: "/tokenize does not read the bodies of /v1/messages",
		}},
		{openai.Embeddings, `{"input":["a","b"]}`, openai.Request{Text: "a", Prompts: 2}},
		{openai.Embeddings, `{"input":[{"role":"user"}]}`, openai.Request{NoPrompt: "the input is a list of messages", Prompts: 1}},
		{openai.Embeddings, `{"messages":[]}`, openai.Request{NoPrompt: "a chat is embedded", Prompts: 1}},
		{openai.Chat, `{"input":"x"}`, openai.Request{NoPrompt: "the body has no prompt"}},
		{openai.Messages, `{"messages":null,"system":"s"}`, openai.Request{NoPrompt: "the body has no prompt", Approximate: "/tokenize does not read the bodies of /v1/messages"}},
		{openai.Other, `{"model":"m","prompt":[-1]}`, openai.Request{Model: "m", NoPrompt: "the body of this route is not read"}},
	} {
		c.want.Route = c.route
		if c.want.N == 0 {
			c.want.N = 1
		}
		got, err := openai.Parse(c.route, []byte(c.body))
		if err != nil {
			t.Errorf("%s %s: %v", c.route, c.body, err)
			continue
		}
		if diff := cmp.Diff(&c.want, got, cmpopts.IgnoreUnexported(openai.Request{})); diff != "" {
			t.Errorf("%s %s: %s", c.route, c.body, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", openai.MaxDepth) + strings.Repeat("]", openai.MaxDepth)
	for body, want := range map[string]string{
		``:                                    "body: want JSON: a JSON object at byte 0, got the end",
		`[]`:                                  "body: want a JSON object, got another value",
		`{"a":1}x`:                            "body: want JSON: the end of the body at byte 7, got another character",
		`{"a":1,}`:                            "body: want JSON: a value after the comma at byte 7, got another character",
		`{"a":01}`:                            "body: want JSON: a comma or the end of the list at byte 6, got another character",
		`{"a":NaN}`:                           "body: want JSON: a JSON value at byte 5, got another character",
		`{"a":"` + "\n" + `"}`:                "body: want JSON: a character of a string at byte 6, got another character",
		`{"a":"\u00g0"}`:                      "body: want JSON: a hexadecimal digit at byte 10, got another character",
		`{"a":"` + "\xff" + `"}`:              "body: want UTF-8, got other bytes",
		`{"a":"` + "\xed\xa0\x80" + `"}`:      "body: want UTF-8, got other bytes",
		`{"a":` + deep + `}`:                  "body: want at most 64 levels of arrays and objects, got more",
		`{"model":"a","model":"b"}`:           "model: want one value, got a second one",
		`{"model":"a","mod\u0065l":"b"}`:      "model: want one value, got a second one",
		`{"cache_salt":null,"cache_salt":""}`: "cache_salt: want one value, got a second one",
		`{"cache_salt":""}`:                   `cache_salt: want a string that is not empty, got ""`,
		`{"model":1}`:                         "model: want a string, got 1",
		`{"model":"` + strings.Repeat("m", 4097) + `"}`: "model: want at most 4096 bytes, got 4097 bytes",
		`{"stream":"true"}`:                             `stream: want true or false, got "true"`,
		`{"stream_options":true}`:                       "stream_options: want an object, got true",
		`{"stream_options":{"include_usage":1}}`:        "stream_options.include_usage: want true or false, got 1",
		`{"n":0}`:                                       "n: want an integer in 1..2147483647, got 0",
		`{"max_tokens":1.5}`:                            "max_tokens: want an integer in 0..2147483647, got 1.5",
		`{"max_tokens":"5"}`:                            `max_tokens: want an integer in 0..2147483647, got "5"`,
		`{"priority":9223372036854775808}`:              "priority: want an integer in -9223372036854775808..9223372036854775807, got 9223372036854775808",
		`{"prompt":{}}`:                                 "prompt: want a string or a list, got {}",
		`{"prompt":[1,4294967296]}`:                     "prompt[1]: want a token id in 0..4294967295, got 4294967296",
		`{"prompt":[1,-2]}`:                             "prompt[1]: want a token id in 0..4294967295, got -2",
		`{"prompt":[1,2.0]}`:                            "prompt[1]: want a token id in 0..4294967295, got 2.0",
		`{"prompt":[true]}`:                             "prompt[0]: want a token id in 0..4294967295, got true",
		`{"prompt":[[7,"a"]]}`:                          `prompt[0][1]: want a token id in 0..4294967295, got "a"`,
		`{"messages":"hi"}`:                             `messages: want a list, got "hi"`,
	} {
		_, err := openai.Parse(openai.Completions, []byte(body))
		var field *openai.FieldError
		switch {
		case err == nil:
			t.Errorf("%.60s: no error, want %q", body, want)
		case !errors.As(err, &field) || field.Code() != 400:
			t.Errorf("%.60s: %T with code %d", body, err, field.Code())
		case err.Error() != want:
			t.Errorf("%.60s: error %q, want %q", body, err, want)
		}
	}
}

func TestParseRefusesALargeBody(t *testing.T) {
	_, err := openai.Parse(openai.Chat, make([]byte, openai.MaxBody+1))
	var field *openai.FieldError
	if !errors.As(err, &field) || field.Code() != 413 {
		t.Errorf("error %v", err)
	}
}

func TestApproximateNamesWhatTokenizeDoesNotRender(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"response_format":{"type":"json_object"}}`: "",
		`{"messages":[],"tools":[1]}`:                                                 "",
		`{"messages":[],"tool_choice":"none"}`:                                        "",
		`{"messages":[],"chat_template_kwargs":{"a":1}}`:                              "",
		`{"messages":[],"tools":[1],"tool_choice":"none"}`:                            "tool_choice is not rendered",
		`{"messages":[],"documents":[],"reasoning_effort":"low"}`:                     "",
		`{"messages":[],"truncate_prompt_tokens":1}`:                                  "truncate_prompt_tokens changes the tokens",
		`{"messages":[{"role":"assistant","reasoning_content":"r"}]}`:                 "reasoning_content is not rendered",
		`{"messages":[{"role":"assistant","reasoning_content":"r","reasoning":"s"}]}`: "",
		`{"messages":[{"content":[{"image_url":{}}]}]}`:                               "a message has parts that are no text",
		`{"messages":[{"content":[{"type":"video_url"}]}]}`:                           "a message has parts that are no text",
	} {
		r, err := openai.Parse(openai.Chat, []byte(body))
		if err != nil || r.Approximate != want {
			t.Errorf("%s: %q, %v, want %q", body, r.Approximate, err, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	for r := openai.Completions; r <= openai.Tokenize; r++ {
		if r.Path() == "" {
			t.Errorf("route %d has no path", r)
		}
	}
}
