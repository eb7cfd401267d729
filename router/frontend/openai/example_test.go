package openai_test

import (
	"fmt"
	"strings"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

func Example() {
	body := []byte(`{"model": "m", "prompt": "Hello", "stream": true, "temperature": 0.5}`)
	r, err := openai.Parse(openai.Completions, body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Model, r.Text, r.Stream, r.MaxTokens)

	// The door asks for usage, which the client did not.
	body, err = openai.Apply(body, openai.Edit{Key: "stream_options", Value: r.WithUsage()})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(body))

	answer := strings.NewReader("data: {\"choices\":[{\"text\":\"you\"}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n")
	s := openai.NewScanner(answer, 1<<20)
	for {
		e, err := s.Next()
		if err != nil {
			fmt.Println(err)
			return
		}
		c := e.Inspect()
		fmt.Println(c.Token, c.UsageOnly(), e.Done())
	}
	// Output:
	// m Hello true 16
	// {"model": "m", "prompt": "Hello", "stream": true, "temperature": 0.5,"stream_options":{"include_usage":true}}
	// true false false
	// false true false
	// false false true
	// EOF
}
