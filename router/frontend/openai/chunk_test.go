package openai_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

func TestInspectTellsTokensFromTheRest(t *testing.T) {
	for _, c := range []struct {
		data string
		want openai.Chunk
	}{
		{`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":null}`, openai.Chunk{Choices: 1}},
		{`{"choices":[{"delta":{"content":"a"}}]}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"choices":[{"delta":{"reasoning":"a"}}]}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"choices":[{"delta":{"reasoning_content":"a","content":null}}]}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"choices":[{"delta":{"tool_calls":[ ]}}]}`, openai.Chunk{Choices: 1}},
		{`{"choices":[{"delta":{"content":""},"token_ids":[7]}]}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}`, openai.Chunk{Choices: 1, Finish: true, Token: true}},
		{`{"choices":[{"delta":{},"finish_reason":"stop"}]}`, openai.Chunk{Choices: 1, Finish: true}},
		{`{"choices":[{"delta":{"content":"","role":"assistant"}}]}`, openai.Chunk{Choices: 1}},
		{`{"choices":[{"delta":{"content":"","role":null}}]}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"choices":[{"text":"","index":0},{"text":"b"}]}`, openai.Chunk{Choices: 2, Token: true}},
		{`{"choices":[],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}}`, openai.Chunk{HasUsage: true, Usage: openai.Usage{Prompt: 5, Completion: 2}}},
		{
			`{"choices":[],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`,
			openai.Chunk{HasUsage: true, Usage: openai.Usage{Prompt: 5, Completion: 2, Cached: 4, HasCached: true}},
		},
		{`{"choices":[{"text":"a"}],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":null}}}`, openai.Chunk{Choices: 1, Token: true, HasUsage: true, Usage: openai.Usage{Prompt: 5}}},
		{`{"choices":[{"text":"a"}],"usage":null}`, openai.Chunk{Choices: 1, Token: true}},
		{`{"error":{"message":"m","code":500}}`, openai.Chunk{Error: true}},
		{`{"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":0}}}`, openai.Chunk{HasUsage: true, Usage: openai.Usage{Prompt: 3}}},
		{`{"type":"content_block_start","content_block":{"type":"text","text":""}}`, openai.Chunk{}},
		{`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`, openai.Chunk{Token: true}},
		{
			`{"type":"message_delta","usage":{"input_tokens":3,"output_tokens":9,"cache_read_input_tokens":16,"cache_creation_input_tokens":2}}`,
			openai.Chunk{HasUsage: true, Usage: openai.Usage{Prompt: 21, Completion: 9, Cached: 16, HasCached: true}},
		},
		{`{"type":"message_stop"}`, openai.Chunk{Finish: true}},
		{`{"type":"error","error":{"type":"api_error"}}`, openai.Chunk{Error: true}},
		{`{"type":"response.created","response":{"usage":null}}`, openai.Chunk{}},
		{`{"delta":"a","type":"response.output_text.delta"}`, openai.Chunk{Token: true}},
		{`{"type":"response.function_call_arguments.delta"}`, openai.Chunk{Token: true}},
		{
			`{"response":{"usage":{"input_tokens":8,"input_tokens_details":{"cached_tokens":0},"output_tokens":1}},"type":"response.completed"}`,
			openai.Chunk{Finish: true, HasUsage: true, Usage: openai.Usage{Prompt: 8, Completion: 1, HasCached: true}},
		},
		{`{"type":"response.failed"}`, openai.Chunk{Finish: true, Error: true}},
		{`[DONE]`, openai.Chunk{}},
		{``, openai.Chunk{}},
		{`{"choices":[{"text":"a"}`, openai.Chunk{}},
	} {
		e := openai.Event{Data: []byte(c.data)}
		if got := e.Inspect(); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.data, got, c.want)
		}
	}
}

func TestUsageOnlyIsTheChunkOfIncludeUsage(t *testing.T) {
	for data, want := range map[string]bool{
		`{"choices":[],"usage":{"prompt_tokens":5}}`:             true,
		`{"choices":[{"text":"a"}],"usage":{"prompt_tokens":5}}`: false,
		`{"choices":[]}`: false,
		`{"type":"response.completed","response":{"usage":{"input_tokens":8}}}`: false,
	} {
		e := openai.Event{Data: []byte(data)}
		if c := e.Inspect(); c.UsageOnly() != want {
			t.Errorf("%s: %+v", data, c)
		}
	}
}

func TestUsageOfAWholeAnswer(t *testing.T) {
	for body, want := range map[string]openai.Usage{
		`{"id":"x","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":null}}`: {Prompt: 9, Completion: 1},
		`{"type":"message","usage":{"input_tokens":2,"output_tokens":4,"cache_read_input_tokens":7}}`:                                           {Prompt: 9, Completion: 4, Cached: 7, HasCached: true},
		`{"object":"response","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":2}}`:                         {Prompt: 9, Completion: 2, Cached: 8, HasCached: true},
	} {
		if got, ok := openai.ParseUsage([]byte(body)); !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", body, got, ok, want)
		}
	}
	for _, body := range []string{``, `[]`, `{}`, `{"usage":null}`, `{"usage":{"prompt_tokens":1}`, `nonsense`} {
		if got, ok := openai.ParseUsage([]byte(body)); ok {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

func TestErrorBodies(t *testing.T) {
	for _, c := range []struct {
		route             openai.Route
		status            int
		kind, param, code string
		want              string
	}{
		{openai.Chat, 400, "", "n", "", `{"error":{"message":"m \"x\"","type":"invalid_request_error","param":"n","code":400}}`},
		{openai.Completions, 429, "", "", "queue_full", `{"error":{"message":"m \"x\"","type":"rate_limit_error","param":null,"code":"queue_full"}}`},
		{openai.Responses, 502, "BadGateway", "", "", `{"error":{"message":"m \"x\"","type":"BadGateway","param":null,"code":502}}`},
		{openai.Messages, 503, "", "n", "c", `{"type":"error","error":{"type":"overloaded_error","message":"m \"x\""}}`},
		{openai.Messages, 529, "overloaded_error", "", "", `{"type":"error","error":{"type":"overloaded_error","message":"m \"x\""}}`},
		{openai.Messages, 502, "server_error", "", "worker_failed", `{"type":"error","error":{"type":"api_error","message":"m \"x\""}}`},
		{openai.Messages, 404, "invalid_request_error", "model", "", `{"type":"error","error":{"type":"not_found_error","message":"m \"x\""}}`},
		{openai.Messages, 500, "", "", "", `{"type":"error","error":{"type":"api_error","message":"m \"x\""}}`},
	} {
		if got := string(c.route.ErrorBody(c.status, c.kind, `m "x"`, c.param, c.code)); got != c.want {
			t.Errorf("%s %d: %s, want %s", c.route, c.status, got, c.want)
		}
	}
}

func TestTokensOfAnAnswer(t *testing.T) {
	for body, want := range map[string]string{
		`{"count":2,"max_model_len":4096,"tokens":[1,22],"token_strs":null}`:           "[1,22]",
		`{"request_id":"x","token_ids":[7],"features":null,"sampling_params":{"n":1}}`: "[7]",
		` [ {"token_ids":[7,8]} , {"token_ids":[9]} ] `:                                "[7,8]",
		`{"token_ids":[7],"features":{"mm_hashes":{}}}`:                                `[7]{"mm_hashes":{}}`,
		`{"tokens":[]}`: "[]",
	} {
		got, err := openai.ParseTokenAnswer([]byte(body))
		if err != nil || string(openai.TokenList(got.Tokens))+string(got.Features) != want {
			t.Errorf("%s: %+v, %v, want %s", body, got, err, want)
		}
	}
	for body, want := range map[string]string{
		`{}`:                "tokens: want a list of token ids, got nothing",
		`[]`:                "tokens: want a list of token ids, got nothing",
		`[1]`:               "body: want JSON: an object at byte 1, got another character",
		`{"tokens":[1,-1]}`: "tokens[1]: want a token id in 0..4294967295, got -1",
		`{"tokens":"a"}`:    "body: want JSON: an array or an object at byte 10, got another character",
		`{"tokens":[1]`:     "body: want JSON: a comma or the end of the list at byte 13, got the end",
		`<html>`:            "body: want JSON: an object at byte 0, got another character",
	} {
		if _, err := openai.ParseTokenAnswer([]byte(body)); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", body, err, want)
		}
	}
}
