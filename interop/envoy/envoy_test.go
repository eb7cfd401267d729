package envoy

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// prompt returns the tokens of a conversation.
func prompt(conversation, length int) []int {
	tokens := make([]int, length)
	for i := range tokens {
		tokens[i] = 1 + conversation*1000 + i
	}
	return tokens
}

// completion returns a body. members are further members of the body, such as `"stream":true`.
func completion(tokens []int, members ...string) string {
	ids := strings.ReplaceAll(strings.Trim(fmt.Sprint(tokens), "[]"), " ", ",")
	return `{"model":"stub","max_tokens":2,"prompt":[` + ids + `]` + strings.Join(append([]string{""}, members...), ",") + `}`
}

// Envoy forwards each request to the worker that a dry run of the router names, on the same
// state: prompts that a worker has, and one worker busy with a stream.
func TestEnvoyPicksWhatTheRouterDecides(t *testing.T) {
	b := newBed(t)
	b.startEnvoy(documented(t, complete))
	const conversations = 12
	for i := range conversations {
		b.workers[i%2].compute(t, prompt(i, 64))
		b.known(prompt(i, 64))
	}
	ctx, leave := context.WithCancel(t.Context())
	held := b.send(ctx, "/v1/completions", completion(prompt(99, 32), `"stream":true`, `"user":"hold"`))
	defer held.Body.Close() //nolint:errcheck // the stream does not end
	defer leave()
	b.known(prompt(99, 32))
	picks := make(map[string]int)
	for i := range conversations {
		tokens := prompt(i, 64)
		want, at := b.dryRun(tokens)
		before := len(b.at(at).requests())
		a := b.ask(completion(tokens))
		if got := a.headers.Get("X-Blockyard-Worker"); a.status != http.StatusOK || got != want {
			t.Errorf("conversation %d: status %d, the answer is of worker %s, the dry run names %s", i, a.status, got, want)
		}
		if got := len(b.at(at).requests()) - before; got != 1 {
			t.Errorf("conversation %d: %d requests came to the worker of the dry run, want 1", i, got)
		}
		picks[at]++
	}
	for _, w := range b.workers {
		if picks[w.url] == 0 {
			t.Errorf("picks by worker: %v; want some of %s", picks, w.url)
		}
	}
	if n := b.booked(); n != 1 {
		t.Errorf("%g requests are booked, want the open stream", n)
	}
	leave()
	b.idle()
}

// at returns the worker with a URL.
func (b *bed) at(url string) *worker {
	b.t.Helper()
	for _, w := range b.workers {
		if w.url == url {
			return w
		}
	}
	b.t.Fatalf("no worker is at %q", url)
	return nil
}

// The door's metrics follow a stream through Envoy: tokens, usage and cached tokens. The
// client gets the usage only when it asked.
func TestEnvoyStreams(t *testing.T) {
	for name, configuration := range map[string]string{"duplex": documented(t, complete), "buffered": buffered(t)} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.startEnvoy(configuration)
			tokens := prompt(1, 64)
			first := b.ask(completion(tokens, `"stream":true`))
			checkStream(t, first, 2, false)
			b.known(tokens)
			checkStream(t, b.ask(completion(tokens, `"stream":true`, `"stream_options":{"include_usage":true}`)), 2, true)
			b.idle()
			if got := b.metric("blockyard_frontend_cached_tokens_delivered_total"); got != 48 {
				t.Errorf("%g cached tokens were delivered, want 48", got)
			}
			if got := b.metric("blockyard_frontend_output_tokens_total"); got != 4 {
				t.Errorf("%g tokens were counted as output, want 4", got)
			}
			if got := b.metric("blockyard_frontend_time_to_first_token_seconds_count"); got != 2 {
				t.Errorf("%g first tokens were seen, want 2", got)
			}
			for _, w := range b.workers {
				w.keepWhole()
			}
			checkStream(t, b.ask(completion(tokens, `"stream":true`)), 2, false)
			for _, w := range b.workers {
				for _, r := range w.requests() {
					checkUsage(t, r)
				}
			}
		})
	}
}

// checkUsage checks that a worker was asked for the usage, in a body as long as its header says.
func checkUsage(t *testing.T, r received) {
	t.Helper()
	if !strings.Contains(r.body, `"include_usage":true`) {
		t.Errorf("the worker got %s", r.body)
	}
	if r.length != int64(len(r.body)) {
		t.Errorf("the worker got %d bytes, the header says %d", len(r.body), r.length)
	}
}

// checkStream checks a streamed answer.
func checkStream(t *testing.T, a answer, chunks int, usage bool) {
	t.Helper()
	if a.status != http.StatusOK || a.headers.Get("X-Blockyard-Worker") == "" {
		t.Fatalf("status %d, headers %v, body %s", a.status, a.headers, a.body)
	}
	if got := strings.Count(a.body, `"index":0`); got != chunks {
		t.Errorf("%d chunks, want %d: %s", got, chunks, a.body)
	}
	if got := strings.Contains(a.body, `"usage"`); got != usage {
		t.Errorf("the answer has the usage: %t, want %t: %s", got, usage, a.body)
	}
	if !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
		t.Errorf("the answer ends with %q", a.body[max(0, len(a.body)-40):])
	}
}

// A client that leaves ends its request at the worker and frees the booking.
func TestEnvoyClientLeaves(t *testing.T) {
	b := newBed(t)
	b.startEnvoy(documented(t, complete))
	ctx, leave := context.WithCancel(t.Context())
	resp := b.send(ctx, "/v1/completions", completion(prompt(1, 64), `"stream":true`, `"user":"hold"`))
	defer resp.Body.Close() //nolint:errcheck // the stream does not end
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatalf("the stream begins with %q, %v", line, err)
	}
	if n := b.booked(); n != 1 {
		t.Errorf("%g requests are booked, want 1", n)
	}
	leave()
	b.idle()
	b.until("the worker's request ends", func() (bool, error) {
		return b.workers[0].abandoned()+b.workers[1].abandoned() == 1, nil
	})
}
