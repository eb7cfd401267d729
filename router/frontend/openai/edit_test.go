package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

func set(key, value string) openai.Edit { return openai.Edit{Key: key, Value: []byte(value)} }
func drop(key string) openai.Edit       { return openai.Edit{Key: key} }

func TestApplyLeavesOtherBytesAlone(t *testing.T) {
	const body = "\t{ \"model\" : \"a\" ,\n \"temperature\":1e0,\"n\":1 , \"stream\":false }\n"
	for _, c := range []struct {
		want  string
		edits []openai.Edit
	}{
		{body, nil},
		{body, []openai.Edit{drop("cache_salt")}},
		{"\t{ \"model\" : \"b\" ,\n \"temperature\":1e0,\"n\":1 , \"stream\":false }\n", []openai.Edit{set("model", `"b"`)}},
		{"\t{\"temperature\":1e0,\"n\":1 , \"stream\":false }\n", []openai.Edit{drop("model")}},
		{"\t{ \"model\" : \"a\" ,\n \"temperature\":1e0 , \"stream\":false }\n", []openai.Edit{drop("n")}},
		{"\t{ \"model\" : \"a\" ,\n \"temperature\":1e0 }\n", []openai.Edit{drop("n"), drop("stream")}},
		{"\t{ \"model\" : \"a\" ,\n \"temperature\":1e0,\"n\":1 , \"stream\":true,\"cache_salt\":\"s\",\"min_tokens\":0 }\n", []openai.Edit{set("cache_salt", `"s"`), set("stream", "true"), set("min_tokens", "0")}},
	} {
		got, err := openai.Apply([]byte(body), c.edits...)
		if err != nil || string(got) != c.want {
			t.Errorf("%v: %q, %v, want %q", c.edits, got, err, c.want)
		}
	}
}

func TestApplyToBodiesWithFewMembers(t *testing.T) {
	for _, c := range []struct {
		body, want string
		edits      []openai.Edit
	}{
		{`{}`, `{"n":1}`, []openai.Edit{set("n", "1")}},
		{`{ }`, `{"n":1 }`, []openai.Edit{set("n", "1")}},
		{`{"n":2}`, `{}`, []openai.Edit{drop("n")}},
		{`{"n":2}`, `{"stream":true}`, []openai.Edit{drop("n"), set("stream", "true")}},
		{`{"\u006e":2}`, `{"\u006e":3}`, []openai.Edit{set("n", "3")}},
	} {
		got, err := openai.Apply([]byte(c.body), c.edits...)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.body, got, err, c.want)
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	for _, c := range []struct {
		body, want string
		edits      []openai.Edit
	}{
		{`{}`, `openai: member "temperature" is not edited`, []openai.Edit{set("temperature", "1")}},
		{`{}`, `openai: two edits of member "n"`, []openai.Edit{set("n", "1"), drop("n")}},
		{`{}`, `openai: the new value of member "n" is not JSON`, []openai.Edit{set("n", `1,"model":"x"`)}},
		{`{"n":1,"\u006e":2}`, "n: want one value, got a second one", []openai.Edit{set("n", "3")}},
		{`[]`, "body: want a JSON object, got another value", nil},
		{`{"a":1`, "body: want JSON: a comma or the end of the list at byte 6, got the end", nil},
	} {
		if _, err := openai.Apply([]byte(c.body), c.edits...); err == nil || err.Error() != c.want {
			t.Errorf("%s: error %v, want %s", c.body, err, c.want)
		}
	}
}

func TestValuesForEdits(t *testing.T) {
	if got := string(openai.TokenList([]uint32{0, 7, 4294967295})); got != "[0,7,4294967295]" {
		t.Error(got)
	}
	if got := string(openai.TokenList(nil)); got != "[]" {
		t.Error(got)
	}
	if got := string(openai.String("a\"\n")) + string(openai.Int(-3)); got != `"a\"\n"-3` {
		t.Error(got)
	}
	for given, want := range map[string]string{
		``:                              `{"include_usage":true}`,
		`{"include_usage":false,"x":1}`: `{"include_usage":true,"x":1}`,
	} {
		r := openai.Request{StreamOptions: json.RawMessage(given)}
		if given == "" {
			r.StreamOptions = nil
		}
		if got := string(r.WithUsage()); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}
