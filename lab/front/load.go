package front

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// maxInFlight bounds the requests in progress. One more counts as an error.
const maxInFlight = 4096

// generator sends requests to one URL after the other in turn: one for a router, those of
// the stubs without a router.
type generator struct {
	urls   []string
	client *http.Client
	stamps stamps // nil: textStamp
}

func newGenerator(urls []string) *generator {
	return &generator{urls: urls, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: maxInFlight, DisableCompression: true, ReadBufferSize: 4 << 10, WriteBufferSize: 8 << 10,
	}}}
}

func (g *generator) close() { g.client.CloseIdleConnections() }

// loaded is what a load showed. Times are in nanoseconds.
type loaded struct {
	sent, failed   int
	firsts, chunks []int64
	// reason is the error of a failed request.
	reason error
}

// errorShare returns the share of requests that failed or were late.
func (l *loaded) errorShare() float64 { return float64(l.failed) / float64(max(1, l.sent)) }

// run sends the calls at a rate per second, whether or not earlier ones were answered, and
// returns their times when all have ended. A call that would exceed maxInFlight counts as failed.
func (g *generator) run(ctx context.Context, calls []call, rate float64) (*loaded, error) {
	var (
		mu    sync.Mutex
		out   = &loaded{sent: len(calls)}
		open  sync.WaitGroup
		began = cluster.Now()
		slots = make(chan struct{}, maxInFlight)
	)
	defer open.Wait()
	note := func(s *stream, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.failed++
			out.reason = err
			return
		}
		out.firsts = append(out.firsts, s.first)
		out.chunks = append(out.chunks, s.chunks...)
	}
	for i := range calls {
		if err := wait(ctx, began+int64(float64(i)/rate*1e9)); err != nil {
			return nil, err
		}
		select {
		case slots <- struct{}{}:
		default:
			note(nil, fmt.Errorf("%d requests are in progress", maxInFlight))
			continue
		}
		open.Go(func() {
			defer func() { <-slots }()
			note(g.send(ctx, i, &calls[i]))
		})
	}
	open.Wait()
	return out, ctx.Err()
}

var errBroken = errors.New("the stream is not complete")

// send sends the request c and returns the times of its streamed answer. turn chooses the URL. An
// answer that is late or broken off is an error.
func (g *generator) send(ctx context.Context, turn int, c *call) (*stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, firstDelay+chunks*chunkDelay+late, errors.New("late"))
	defer cancel()
	s := &stream{chunks: make([]int64, 0, chunks), stamps: g.stamps}
	resp, err := g.open(ctx, turn, c, s)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	piece := make([]byte, 4<<10)
	for {
		n, err := resp.Body.Read(piece)
		s.add(piece[:n], cluster.Now())
		switch {
		case errors.Is(err, io.EOF) && s.whole():
			return s, nil
		case errors.Is(err, io.EOF):
			return nil, errBroken
		case err != nil:
			return nil, err
		}
	}
}

// open sends the request c, sets s.began to the time, and returns the answer, whose body the
// caller closes. A status other than 200 is an error.
func (g *generator) open(ctx context.Context, turn int, c *call, s *stream) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.urls[turn%len(g.urls)]+c.path, bytes.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	s.began = cluster.Now()
	resp, err := g.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		resp.Body.Close()
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return resp, nil
}

// holdRate is how many streams are opened a second.
const holdRate = 500

// hold opens n streams that send one chunk and stay open, calls look when all have their chunk,
// and then closes them. So look sees what open streams cost.
func (g *generator) hold(ctx context.Context, n int, look func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	began, c := make(chan error, n), held()
	start := cluster.Now()
	for i := range n {
		if err := wait(ctx, start+int64(i)*int64(time.Second)/holdRate); err != nil {
			return err
		}
		open.Go(func() {
			resp, err := g.open(ctx, i, &c, new(stream))
			if err == nil {
				defer resp.Body.Close()
				_, err = resp.Body.Read(make([]byte, 512))
			}
			if began <- err; err == nil {
				<-ctx.Done()
			}
		})
	}
	for range n {
		select {
		case err := <-began:
			if err != nil {
				return fmt.Errorf("open %d streams: %w", n, err)
			}
		case <-time.After(10 * time.Second):
			return fmt.Errorf("open %d streams: some have no chunk after 10s", n)
		}
	}
	if err := cluster.Wait(ctx, time.Second); err != nil {
		return err
	}
	return look()
}
