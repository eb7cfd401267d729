package frontend_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// The end of the request's own time in mid-stream is not the worker's fault.
func TestDeadlineInMidStream(t *testing.T) {
	gone := make(chan struct{}, 1)
	b := newBench(t, frontend.Options{}, newServer(t, 7, waits(gone)))
	_, body := b.post("/v1/completions", prompt, frontend.TimeoutHeader, "200")
	<-gone
	first, rest, _ := strings.Cut(body, "\n\n")
	if message, code := errorOf(t, strings.TrimPrefix(strings.TrimSpace(rest), "data: ")); code != "deadline" || first != "data: "+chunk {
		t.Errorf("the client got %q with %q, code %s; want deadline", first, message, code)
	}
	b.expectIdle()
	if got := b.directory.outcomes(); len(got) != 1 || got[0] != workers.OutcomeClient {
		t.Errorf("outcomes %v, want %v", got, workers.OutcomeClient)
	}
}

// waits begins a stream and then waits until the client leaves.
func waits(gone chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		streams(chunk)(w, r)
		<-r.Context().Done()
		gone <- struct{}{}
	}
}

// A client that leaves ends the request at its worker and frees the booking.
func TestClientLeaves(t *testing.T) {
	gone := make(chan struct{}, 1)
	b := newBench(t, frontend.Options{}, newServer(t, 7, waits(gone)))
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/completions", strings.NewReader(prompt))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // cut off
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	leave()
	<-gone
	b.expectIdle()
}

// Clients that leave say nothing about the worker, whether they have part of the answer, none
// or all of it. Their requests are not fatal.
func TestClientsThatLeave(t *testing.T) {
	gone := make(chan struct{}, 1)
	for name, s := range map[string]struct {
		events []string
		read   string // last line that the client reads
		want   workers.Outcome
	}{
		"before the first event": {nil, "", workers.OutcomeClient},
		"in mid-stream":          {[]string{chunk}, "data: " + chunk, workers.OutcomeClient},
		"after the last event":   {[]string{chunk, "[DONE]"}, "data: [DONE]", workers.OutcomeOK},
	} {
		t.Run(name, func(t *testing.T) {
			began := make(chan struct{}, 1)
			b := newBench(t, frontend.Options{}, newServer(t, 7, func(w http.ResponseWriter, r *http.Request) {
				streams(s.events...)(w, r)
				w.(http.Flusher).Flush()
				began <- struct{}{}
				<-r.Context().Done()
				gone <- struct{}{}
			}))
			for n := range 3 {
				ctx, leave := context.WithCancel(t.Context())
				read := make(chan struct{})
				go func() {
					defer close(read)
					b.readUntil(ctx, s.read)
				}()
				<-began
				if s.read != "" {
					<-read
				}
				leave()
				<-read
				<-gone
				b.expectIdle()
				if got := b.directory.outcomes(); len(got) != n+1 || got[n] != s.want {
					t.Fatalf("outcomes %v, want %d times %v", got, n+1, s.want)
				}
			}
		})
	}
}

// The time of a request ends it: 504 before the first event.
func TestDeadline(t *testing.T) {
	gone := make(chan struct{}, 1)
	b := newBench(t, frontend.Options{}, newServer(t, 7, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	resp, body := b.post("/v1/completions", prompt, frontend.TimeoutHeader, "50")
	if _, code := errorOf(t, body); resp.StatusCode != 504 || code != "deadline" {
		t.Errorf("status %d, code %s; want 504, deadline", resp.StatusCode, code)
	}
	<-gone
	b.expectIdle()
}
