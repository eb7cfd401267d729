package router

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// call sends one request to the handler and returns the answer.
func call(t *testing.T, h http.Handler, method, path, id, body string) *http.Response {
	t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func tokensJSON(tokens []uint32) string {
	b, err := json.Marshal(tokens)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(b)
}

// twoWorkers puts two workers and a pool with known blocks on the bench.
func twoWorkers(b *bench) {
	p1, p2 := b.publisher(0x11, workerOwner(1), 77), b.publisher(0x12, workerOwner(2), 77)
	pool := b.publisher(0x13, kv.PoolOwner(77), 0)
	b.send(p1.announce(), p2.announce(), pool.announce())
	b.send(p2.store(kv.TierDevice, promptTokens(1)),
		pool.store(kv.TierHost, promptTokens(1, 2)), pool.store(kv.TierDisk, promptTokens(1)))
}

// route sends a request and returns its answer's status and text.
func (b *bench) route(h http.Handler, id, body string) (*http.Response, string) {
	b.t.Helper()
	r := call(b.t, h, "POST", "/v1/route", id, body)
	return r, text(b.t, r)
}

// newBody is a request to route the prompt of some blocks, with more fields.
func newBody(more string, ids ...uint32) string {
	return `{"method":"new","tokens":` + tokensJSON(promptTokens(ids...)) + more + `}`
}
