package sharedcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/sharedcache/sharedcachetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = 2

func prompt(blocks int) []uint32 {
	tokens := make([]uint32, blocks*blockSize)
	for i := range tokens {
		tokens[i] = uint32(i) + 11
	}
	return tokens
}

func sequence(tokens []uint32, salt string) []kv.SequenceHash {
	var h kv.Hasher
	return kv.AppendSequence(nil, h.AppendLocals(nil, tokens, blockSize, kv.LocalSeed("", salt)))
}

func newClient(t *testing.T, o Options) *Client {
	t.Helper()
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// The client's hits are the positions of the blocks that the service holds, by
// content, prefix and namespace.
func TestClientFindsWhatTheServiceHolds(t *testing.T) {
	var double sharedcachetest.Server
	server := httptest.NewServer(&double)
	t.Cleanup(server.Close)
	c := newClient(t, Options{URL: server.URL, Timeout: 20 * time.Second})
	tokens := append(prompt(6), 99) // and a tail
	s := sequence(tokens, "")
	double.Store(s[0], s[1], s[3], s[4], s[5])
	hits, err := c.CheckBlocks(t.Context(), tokens, blockSize, "")
	if err != nil || hits.TotalHits() != 5 || hits.Beyond(1) != 4 || hits.Beyond(3) != 3 || hits.Beyond(6) != 0 {
		t.Errorf("%+v, %v; want blocks 0, 1, 3, 4, 5", hits, err)
	}
	if hits, err := c.CheckBlocks(t.Context(), tokens, blockSize, "tenant"); err != nil || hits.TotalHits() != 0 {
		t.Errorf("another namespace: %+v, %v", hits, err)
	}
	double.Store(sequence(tokens, "tenant")[0])
	if hits, err := c.CheckBlocks(t.Context(), tokens, blockSize, "tenant"); err != nil || hits.TotalHits() != 1 {
		t.Errorf("another namespace with a block: %+v, %v", hits, err)
	}
	if hits, err := c.CheckBlocks(t.Context(), []uint32{1}, blockSize, ""); err != nil || hits.TotalHits() != 0 {
		t.Errorf("less than a block: %+v, %v", hits, err)
	}
}

// Engines that hash pairs look one token farther than the block.
func TestClientHashesPairs(t *testing.T) {
	var double sharedcachetest.Server
	server := httptest.NewServer(&double)
	t.Cleanup(server.Close)
	c := newClient(t, Options{URL: server.URL, Timeout: 20 * time.Second, Pairs: true})
	var h kv.Hasher
	double.Store(kv.SequenceHash(h.Local([]uint32{11, 12, 13}, kv.HashSeed, nil)))
	for tokens, want := range map[int]int{2: 0, 3: 1, 4: 1} {
		hits, err := c.CheckBlocks(t.Context(), prompt(2)[:tokens], blockSize, "")
		if err != nil || hits.TotalHits() != want {
			t.Errorf("%d tokens: %+v, %v; want %d hits", tokens, hits, err, want)
		}
	}
}

// answering is a transport whose every answer is the same.
type answering struct {
	status int
	body   string
	hang   bool
	asked  int
}

func (a *answering) RoundTrip(req *http.Request) (*http.Response, error) {
	a.asked++
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil, err
	}
	if a.hang {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader(a.body)), Request: req}, nil
}

func TestAnswersThatAreNotInOrderAreErrors(t *testing.T) {
	for _, c := range []struct {
		status     int
		body, want string
	}{
		{200, `{"ranges":[[0,1],[2,3]]}`, ""},
		{200, `{"ranges":[[0,1],[1,4]],"more":"to say"}`, ""},
		{200, `{"ranges":[]}`, ""},
		{200, `{"ranges":[[0,5]]}`, "ranges[0] is 0..5, want a part of 0..4"},
		{200, `{"ranges":[[2,3],[0,1]]}`, "ranges[1] begins at 0"},
		{200, `{"ranges":[[0,2],[1,3]]}`, "ranges[1] begins at 1"},
		{200, `{"ranges":[[1,1]]}`, "ranges[0] is 1..1"},
		{200, `{"ranges":[[-1,1]]}`, "answer"},
		{200, `{"ranges":[[1]]}`, "ranges[0] has 1 numbers"},
		{200, `{"ranges":null}`, "ranges are missing"},
		{200, `{}`, "ranges are missing"},
		{200, `[`, "answer"},
		{200, `{"ranges":[]}` + strings.Repeat(" ", 8192), "more than 4352 bytes"},
		{500, `{"ranges":[]}`, "status 500"},
		{404, ``, "status 404"},
	} {
		client := newClient(t, Options{URL: "http://cache.invalid/base/", Transport: &answering{status: c.status, body: c.body}})
		_, err := client.CheckBlocks(t.Context(), prompt(4), blockSize, "")
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) && c.want != "" {
			t.Errorf("%d %.60s: %v, want %q", c.status, c.body, err, c.want)
		}
	}
}

// A service that hangs delays five requests by the timeout, and then one a second.
func TestAServiceThatFailsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &answering{status: 200, body: `{"ranges":[[0,1]]}`, hang: true}
		c := newClient(t, Options{URL: "http://cache.invalid", Transport: service})
		start := time.Now()
		for range 100 {
			if _, err := c.CheckBlocks(t.Context(), prompt(1), blockSize, ""); err == nil {
				t.Fatal("an answer from a service that hangs")
			}
		}
		if waited := time.Since(start); service.asked != backoff.BreakerFailures || waited != backoff.BreakerFailures*defaultTimeout {
			t.Errorf("asked %d times in %v", service.asked, waited)
		}
		_, err := c.CheckBlocks(t.Context(), prompt(1), blockSize, "")
		if !errors.Is(err, ErrPaused) {
			t.Errorf("error %v", err)
		}
		<-time.After(backoff.BreakerPause)
		for range 2 {
			c.CheckBlocks(t.Context(), prompt(1), blockSize, "")
		}
		if service.asked != backoff.BreakerFailures+1 {
			t.Errorf("after a rest it was asked %d times, want one more", service.asked-backoff.BreakerFailures)
		}
		<-time.After(backoff.BreakerPause)
		service.hang = false
		for range 10 {
			if _, err := c.CheckBlocks(t.Context(), prompt(1), blockSize, ""); err != nil {
				t.Errorf("a service that answers again: %v", err)
			}
		}
	})
}

// After a rest one of all that come at once asks, and the others do without.
func TestOneRequestTriesAServiceThatRested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &answering{hang: true}
		c := newClient(t, Options{URL: "http://cache.invalid", Transport: service})
		for range backoff.BreakerFailures {
			if _, err := c.CheckBlocks(t.Context(), prompt(1), blockSize, ""); err == nil {
				t.Fatal("an answer from a service that hangs")
			}
		}
		<-time.After(backoff.BreakerPause)
		const callers = 50
		var alone atomic.Int64
		var calls sync.WaitGroup
		for range callers {
			calls.Go(func() {
				if _, err := c.CheckBlocks(t.Context(), prompt(1), blockSize, ""); errors.Is(err, ErrPaused) {
					alone.Add(1)
				}
			})
		}
		calls.Wait()
		if n := alone.Load(); n != callers-1 {
			t.Errorf("%d of %d did without, want all but one", n, callers)
		}
	})
}

// Callers that leave do not make the service look bad.
func TestCallersThatLeaveAreNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &answering{hang: true}
		c := newClient(t, Options{URL: "http://cache.invalid", Transport: service})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 * backoff.BreakerFailures {
			if _, err := c.CheckBlocks(gone, prompt(1), blockSize, ""); !errors.Is(err, context.Canceled) {
				t.Fatalf("error %v", err)
			}
		}
	})
}

func TestOptionsNameTheirField(t *testing.T) {
	for _, o := range []Options{{}, {URL: "cache:80"}, {URL: "ftp://cache"}, {URL: "http://"}, {URL: "http://c", Timeout: -1},
		{URL: "http://c", Timeout: time.Hour}, {URL: "http://c\x7f"}} {
		if _, err := NewClient(o); err == nil || !strings.HasPrefix(err.Error(), "shared cache ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
