package tokens_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
)

func Example() {
	// A worker whose tokenizer knows one word.
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"count":1,"max_model_len":4096,"tokens":[9906],"token_strs":null}`)
	}))
	defer worker.Close()

	source := tokens.New(tokens.Options{Servers: servers{{URL: worker.URL}}})
	defer source.Close()

	r, err := openai.Parse(openai.Completions, []byte(`{"model":"m","prompt":"Hello"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		prompt, err := source.Tokens(context.Background(), r.Model, r)
		fmt.Println(prompt.Tokens, prompt.Exact, err)
	}
	st := source.Stats()
	fmt.Println(st.Tokenizes, "call,", st.Hits, "hit")
	// Output:
	// [9906] true <nil>
	// [9906] true <nil>
	// 1 call, 1 hit
}
