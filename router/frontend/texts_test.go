package frontend_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/connlimit"
	"github.com/blockyard-ai/blockyard/router/frontend"
)

// Requests that net/http refuses before the door sees them get OpenAI's errors too.
func TestUnreadableRequests(t *testing.T) {
	b := newBench(t, frontend.Options{}, newServer(t, 7, answers(200, `{}`)))
	address := strings.TrimPrefix(serveDoor(t, b), "http://")
	for request, want := range map[string]int{
		"nonsense\r\n\r\n":                                                     400,
		"GET /v1/models HTTP/1.1\r\n\r\n":                                      400,
		"GET /v1/models HTTP/7.1\r\nHost: a\r\n\r\n":                           505,
		"GET /v1/models HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: odd\r\n\r\n": 501,
		"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":      200,
	} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%q: %v", request, err)
		}
		body, err := io.ReadAll(resp.Body)
		if _ = c.Close(); err != nil || resp.StatusCode != want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: status %d, want %d; %s %v", request, resp.StatusCode, want, resp.Header, err)
		}
		if want != 200 {
			errorOf(t, string(body))
		}
	}
}

// The limits of connections see which connections of the door are busy.
func TestBusyConnectionsStay(t *testing.T) {
	h := &holds{end: make(chan struct{})}
	b := newBench(t, frontend.Options{}, newServer(t, 7, h.answer))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := serveOn(t, b, connlimit.Listen(plain, connlimit.Limits{All: 1}))
	held := make(chan error, 1)
	go func() {
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1]}`))
		if err == nil {
			err = resp.Body.Close()
		}
		held <- err
	}()
	await(t, &h.all, 1)
	c, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("one connection too many got %d bytes", n)
	}
	_ = c.Close()
	close(h.end)
	if err := <-held; err != nil {
		t.Errorf("the busy connection: %v", err)
	}
}
