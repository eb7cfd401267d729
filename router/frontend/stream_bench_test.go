package frontend_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/frontend"
)

// BenchmarkStream measures a streamed completion of 20 chunks through the door, server and
// client included: a prompt of 91 tokens, the chunks of one answer at once or each by
// itself.
func BenchmarkStream(b *testing.B) {
	event := []byte("data: " + chunk + "\n\n")
	end := []byte("data: " + usageOnly + "\n\ndata: [DONE]\n\n")
	body := `{"model":"m","prompt":[` + strings.Repeat("123456,", 90) + `1],"stream":true,"max_tokens":20}`
	for name, flush := range map[string]bool{"together": false, "one-by-one": true} {
		b.Run(name, func(b *testing.B) {
			s := newServer(b, 1, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				for range 20 {
					_, _ = w.Write(event)
					if flush {
						w.(http.Flusher).Flush()
					}
				}
				_, _ = w.Write(end)
			})
			bed := newBench(b, frontend.Options{}, s)
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
			b.ReportAllocs()
			for b.Loop() {
				resp, err := client.Post(bed.url+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || bytes.Count(got, []byte("\n\n")) != 21 {
					b.Fatalf("%d events, %v", bytes.Count(got, []byte("\n\n")), err)
				}
			}
		})
	}
}

// BenchmarkOpenStreams measures the memory of streams that have sent their first event: prompts
// of 4,000 token ids, client and worker without goroutines.
func BenchmarkOpenStreams(b *testing.B) {
	const streams = 200
	bed := newHolding(b)
	var perStream int64
	for b.Loop() {
		before := held()
		closeAll := bed.openStreams(streams, 4000)
		perStream = (held() - before) / streams
		closeAll()
		bed.expectIdle()
	}
	b.ReportMetric(float64(perStream), "B/stream")
}

// An open stream keeps neither the body nor the tokens of its prompt.
func TestOpenStreamsAreSmall(t *testing.T) {
	// The body has 7 bytes for each token, the tokens 4, the blocks of the booking about 3.5.
	const streams, tokens, most = 10, 100_000, 600_000
	bed := newHolding(t)
	before := held()
	closeAll := bed.openStreams(streams, tokens)
	defer closeAll()
	// The transport may close the body a moment after the first event.
	for began := time.Now(); ; runtime.Gosched() {
		perStream := (held() - before) / streams
		if perStream < most {
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d bytes for each stream, want less than %d", perStream, most)
		}
	}
}

// held returns the bytes of the heap and of stacks that are in use.
func held() int64 {
	runtime.GC()
	runtime.GC() // pools survive one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// newHolding serves a door in front of a worker whose answers stay open after their first event.
func newHolding(tb testing.TB) *bench {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	tb.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		event := "data: " + chunk + "\n\n"
		from := bufio.NewReader(nil)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close() //nolint:errcheck // the client has left
			from.Reset(c)
			req, err := http.ReadRequest(from)
			if err == nil {
				_, err = io.Copy(io.Discard, req.Body)
			}
			if err != nil {
				tb.Error(err)
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(event), event)
		}
	}()
	return newBench(tb, frontend.Options{}, &server{Server: &httptest.Server{URL: "http://" + l.Addr().String()}, id: 1})
}

// openStreams opens n streams with prompts of some tokens and returns when each has its first
// event. The returned function closes them.
func (b *bench) openStreams(n, tokens int) (closeAll func()) {
	body := `{"model":"adapter","prompt":[` + strings.Repeat("123456,", tokens-1) + `1],"stream":true}`
	request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: door\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var clients []net.Conn
	for range n {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			b.t.Fatal(err)
		}
		clients = append(clients, c)
		if _, err := c.Write(request); err != nil {
			b.t.Fatal(err)
		}
		var got []byte
		for piece := make([]byte, 4<<10); !bytes.Contains(got, []byte(chunk)); {
			n, err := c.Read(piece)
			if err != nil {
				b.t.Fatalf("%v after %q", err, got)
			}
			got = append(got, piece[:n]...)
		}
	}
	return func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}
}
