package routertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// Call sends one request to the handler and returns the answer.
func Call(t *testing.T, h http.Handler, method, path, id, body string) *http.Response {
	t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

// Text is the body of an answer without blanks around it.
func Text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TokensJSON is a JSON array of token ids.
func TokensJSON(tokens []uint32) string {
	b, err := json.Marshal(tokens)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// TwoWorkers puts two workers and a pool with known blocks on the bench.
func TwoWorkers(b *Bench) {
	p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 77), b.Publisher(0x12, sourcetest.WorkerOwner(2), 77)
	pool := b.Publisher(0x13, kv.PoolOwner(77), 0)
	b.Send(p1.Announce(), p2.Announce(), pool.Announce())
	b.Send(p2.Store(kv.TierDevice, sourcetest.Tokens(1)),
		pool.Store(kv.TierHost, sourcetest.Tokens(1, 2)), pool.Store(kv.TierDisk, sourcetest.Tokens(1)))
}

// Route sends a request and returns its answer's status and text.
func (b *Bench) Route(h http.Handler, id, body string) (*http.Response, string) {
	b.T.Helper()
	r := Call(b.T, h, "POST", "/v1/route", id, body)
	return r, Text(b.T, r)
}

// NewBody is a request to route the prompt of some blocks, with more fields.
func NewBody(more string, ids ...uint32) string {
	return `{"method":"new","tokens":` + TokensJSON(sourcetest.Tokens(ids...)) + more + `}`
}

// Later routes a request that may wait; its answer is "ID STATUS".
func (b *Bench) Later(h http.Handler, id, body string) <-chan string {
	answer := make(chan string, 1)
	go func() {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(b.T.Context(), "POST", "/v1/route", strings.NewReader(body))
		req.Header.Set("X-Request-Id", id)
		h.ServeHTTP(w, req)
		answer <- fmt.Sprint(id, " ", w.Code)
	}()
	synctest.Wait()
	return answer
}

// HalfAStep is a configuration that counts a worker as busy at half a step of tokens.
func HalfAStep() *config.Config {
	return Configured(func(c *config.Config) {
		half := 0.5
		c.RouterQueueThreshold, c.FirstOfEqual = &half, true
	})
}
