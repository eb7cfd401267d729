package frontend_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// A stored response stays with its worker: requests that continue it, read it or cancel it
// go there.
func TestStoredResponse(t *testing.T) {
	answer := func(id string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"id":%q,"path":%q,"usage":{"input_tokens":3,"output_tokens":1}}`, id, r.URL.Path)
		}
	}
	one, two := newServer(t, 1, answer("r1")), newServer(t, 2, answer("r2"))
	b := newBench(t, frontend.Options{}, one, two)
	for range 8 {
		resp, _ := b.post("/v1/responses", `{"model":"m","input":"hello"}`)
		at, id := resp.Header.Get(frontend.WorkerHeader), "r1"
		if at == "2/0" {
			id = "r2"
		}
		next, _ := b.post("/v1/responses", `{"model":"m","input":"more","previous_response_id":"`+id+`"}`)
		if got := next.Header.Get(frontend.WorkerHeader); got != at {
			t.Errorf("the response after %s went to worker %s, want %s", id, got, at)
		}
		if resp, body := b.post("/v1/responses/"+id+"/cancel", ""); resp.StatusCode != 200 || !strings.Contains(body, id) {
			t.Errorf("cancel %s: status %d, %s", id, resp.StatusCode, body)
		}
	}
	resp, err := http.Get(b.url + "/v1/responses/unknown")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // not read
	if resp.StatusCode != 404 {
		t.Errorf("unknown response: status %d, want 404", resp.StatusCode)
	}
	b.expectIdle()
}

func Example() {
	reg, err := registry.New(registry.Options{})
	if err != nil {
		panic(err)
	}
	defer reg.Close() //nolint:errcheck // nothing to lose
	r, err := router.New(router.Options{}, reg)
	if err != nil {
		panic(err)
	}
	door, err := frontend.New(frontend.Options{Router: r, Workers: &directory{}, Tokens: prompts{}})
	if err != nil {
		panic(err)
	}
	front := httptest.NewServer(door.Handler())
	defer front.Close()
	resp, err := http.Post(front.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":[1]}`))
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	fmt.Println(resp.StatusCode, strings.Contains(string(body), "no worker serves the model"))
	// Output: 404 true
}
