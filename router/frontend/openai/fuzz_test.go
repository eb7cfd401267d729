package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

var bodies = []string{
	`{"model":"m","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}`,
	`{"prompt":[1,2,4294967295],"n":2,"model":null}`,
	`{"prompt":[[1],[2,3]],"cache_salt":"s"}`,
	` { "mod\u0065l" : "\ud83d\ude00", "messages":[{"role":"user","content":[{"type":"text","text":"x\\"}]}] , "priority":-1e1} `,
	`{"input":[{"type":"message"}],"max_output_tokens":1.0,"store":false}`,
	`{"messages":[{"content":[{"content":[{"type":"image"}]}]}],"system":[],"tools":[{}],"tool_choice":{"type":"tool"}}`,
	`{"a":[[[{}]]],"b":-0.1E+2,"c":[null,true,false],"":""}`,
	`{"n":1,"n":1}`, `{"n":1,}`, `[1]`, `{}x`, "{\"user\":\"\xff\"}",
}

// FuzzParse holds Parse against encoding/json: Parse accepts only what is JSON and UTF-8,
// and reads the same values.
func FuzzParse(f *testing.F) {
	for _, b := range bodies {
		for r := openai.Other; r <= openai.Tokenize; r++ {
			f.Add(byte(r), []byte(b))
		}
	}
	f.Fuzz(func(t *testing.T, route byte, body []byte) {
		r, err := openai.Parse(openai.Route(route)%(openai.Tokenize+1), body)
		var field *openai.FieldError
		if err != nil {
			if !errors.As(err, &field) {
				t.Fatalf("error %T: %v", err, err)
			}
			return
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("accepted %q", body)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(body, &members); err != nil {
			t.Fatal(err)
		}
		same(t, members, "model", r.Model)
		same(t, members, "user", r.User)
		same(t, members, "cache_salt", r.Salt)
		same(t, members, "stream", r.Stream)
		same(t, members, "echo", r.Echo)
		if r.N != 1 {
			var n float64
			if json.Unmarshal(members["n"], &n) != nil || float64(r.N) != n {
				t.Errorf("n %d, want %s", r.N, members["n"])
			}
		}
		prompt := members["prompt"]
		if r.Route == openai.Embeddings {
			prompt = members["input"]
		}
		checkPrompt(t, r, prompt)
		for _, sent := range [][]byte{r.Chat, r.RenderBody("m"), r.TokenizeBody("m")} {
			if sent != nil && !json.Valid(sent) {
				t.Errorf("made %s", sent)
			}
		}
	})
}

func same[T comparable](t *testing.T, members map[string]json.RawMessage, key string, got T) {
	var want T
	if raw := members[key]; raw != nil {
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Errorf("%s: accepted %s: %v", key, raw, err)
		}
	}
	if got != want {
		t.Errorf("%s: %v, want %v", key, got, want)
	}
}

// checkPrompt compares the first prompt with what encoding/json reads.
func checkPrompt(t *testing.T, r *openai.Request, raw json.RawMessage) {
	var list []json.RawMessage
	if r.Tokens == nil && r.Text == "" {
		return
	}
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 && (list[0][0] == '[' || list[0][0] == '"') {
		if r.Prompts != len(list) {
			t.Errorf("%d prompts, want %d", r.Prompts, len(list))
		}
		raw = list[0]
	} else if r.Prompts != 1 {
		t.Errorf("%d prompts, want 1", r.Prompts)
	}
	if r.Tokens != nil {
		var ids []uint32
		if err := json.Unmarshal(raw, &ids); err != nil || !reflect.DeepEqual(ids, r.Tokens) {
			t.Errorf("tokens %v, want %s", r.Tokens, raw)
		}
		return
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil || text != r.Text {
		t.Errorf("text %q, want %s", r.Text, raw)
	}
}

// FuzzApply checks that an edit gives what encoding/json would give with the member
// replaced, and that editing back restores the body byte for byte.
func FuzzApply(f *testing.F) {
	keys := []string{"model", "n", "stream", "cache_salt", "kv_transfer_params"}
	for i, b := range bodies {
		f.Add([]byte(b), byte(i), false, []byte(`{"x":[1]}`))
		f.Add([]byte(b), byte(i), true, []byte(`"y"`))
	}
	f.Fuzz(func(t *testing.T, body []byte, which byte, remove bool, value []byte) {
		key := keys[int(which)%len(keys)]
		edit := openai.Edit{Key: key, Value: value}
		if remove {
			edit.Value = nil
		}
		before := bytes.Clone(body)
		out, err := openai.Apply(body, edit)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			return
		}
		if !json.Valid(body) || !remove && !json.Valid(value) {
			t.Fatalf("accepted %q and %q", body, value)
		}
		var want, got map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil || json.Unmarshal(out, &got) != nil {
			t.Fatalf("%q became %q", body, out)
		}
		if delete(want, key); !remove {
			want[key] = bytes.Trim(value, " \t\r\n")
		}
		if len(got) != len(want) {
			t.Fatalf("%q became %q", body, out)
		}
		for k, v := range want {
			if !bytes.Equal(bytes.Trim(got[k], " \t\r\n"), v) {
				t.Fatalf("%s: %q, want %q", k, got[k], v)
			}
		}
		if old, ok := memberOf(body, key); ok && !remove {
			if back, err := openai.Apply(out, openai.Edit{Key: key, Value: old}); err != nil || !bytes.Equal(back, body) {
				t.Fatalf("%q became %q and back %q, %v", body, out, back, err)
			}
		}
	})
}

// memberOf returns the bytes of a member's value.
func memberOf(body []byte, key string) (json.RawMessage, bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return nil, false
	}
	v, ok := members[key]
	return v, ok
}

// FuzzScanner checks that the sizes of reads do not matter, that no byte is lost, and that
// events are what an independent reading of the stream finds.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{
		"data: 1\n\n", "data: 1\r\n\r\ndata:2\n\n", ": c\n\nevent: a\ndata: x\ndata: y\n\n", "\n\n\r\n", "data: [DONE]\n\nrest", "data\r\n\n", "\xef\xbb\xbfdata: 1\n\n", "a\r\r\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		want, rest, end := scan(bytes.NewReader(stream), 1<<20)
		all := new(strings.Builder)
		for _, e := range want {
			all.WriteString(e.raw)
		}
		if all.String()+rest != string(stream) {
			t.Fatalf("%q became %q and %q", stream, want, rest)
		}
		if (rest == "") != (end == io.EOF) {
			t.Fatalf("rest %q with error %v", rest, end)
		}
		got, gotRest, gotEnd := scan(iotest.OneByteReader(bytes.NewReader(stream)), 1<<20)
		if !reflect.DeepEqual(got, want) || gotRest != rest || gotEnd != end {
			t.Fatalf("by bytes: %q %q %v, want %q %q %v", got, gotRest, gotEnd, want, rest, end)
		}
		if plain := splitLines(string(stream)); !reflect.DeepEqual(plain, dataOf(want)) {
			t.Fatalf("data %q, want %q", dataOf(want), plain)
		}
	})
}

func dataOf(events []line) []string {
	var data []string
	for _, e := range events {
		data = append(data, e.data)
	}
	return data
}

// splitLines reads a stream the slow way: by lines.
func splitLines(stream string) []string {
	var events, data []string
	lines := strings.SplitAfter(strings.TrimPrefix(stream, "\xef\xbb\xbf"), "\n")
	for _, l := range lines {
		text, whole := strings.CutSuffix(l, "\n")
		text = strings.TrimSuffix(text, "\r")
		switch {
		case !whole:
			return events
		case text == "":
			if joined := strings.Join(data, "\n"); data == nil {
				events = append(events, "-")
			} else {
				events = append(events, joined)
			}
			data = nil
		default:
			if name, value, _ := strings.Cut(text, ":"); name == "data" {
				data = append(data, strings.TrimPrefix(value, " "))
			}
		}
	}
	return events
}

// FuzzInspect checks that Inspect and the readers of answers take any bytes.
func FuzzInspect(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":1}}`))
	f.Add([]byte(`{"type":"response.completed","response":{"usage":{"input_tokens":1}}}`))
	f.Add([]byte(`[{"token_ids":[1,2]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e := openai.Event{Data: data}
		c := e.Inspect()
		if !json.Valid(data) && c != (openai.Chunk{}) && json.Valid(bytes.TrimSpace(data)) {
			t.Errorf("%q: %+v", data, c)
		}
		if u, ok := openai.ParseUsage(data); ok && !json.Valid(data) {
			t.Errorf("%q: %+v", data, u)
		}
		if a, err := openai.ParseTokenAnswer(data); err == nil && (a.Tokens == nil || !json.Valid(data)) {
			t.Errorf("%q: %+v", data, a)
		}
	})
}
