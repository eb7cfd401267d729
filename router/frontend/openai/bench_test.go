package openai_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

func BenchmarkParseChat(b *testing.B) {
	body, err := json.Marshal(map[string]any{
		"model": "m", "stream": true, "temperature": 0.5,
		"messages": []map[string]string{
			{"role": "system", "content": strings.Repeat("You are a helpful assistant.\n", 500)},
			{"role": "user", "content": strings.Repeat("What does the yard hold? ", 600)},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openai.Parse(openai.Chat, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseTokens(b *testing.B) {
	ids := make([]uint32, 8192)
	for i := range ids {
		ids[i] = uint32(i * 7919 % 128000)
	}
	body := []byte(`{"model":"m","prompt":` + string(openai.TokenList(ids)) + `}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openai.Parse(openai.Completions, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 6000) + `"}],"stream":true}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openai.Apply(body, openai.Edit{Key: "stream_options", Value: []byte(`{"include_usage":true}`)}); err != nil {
			b.Fatal(err)
		}
	}
}
