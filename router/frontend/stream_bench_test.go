package frontend_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/frontend"
)

// BenchmarkStream measures a streamed completion of 20 chunks: a prompt of 91 tokens, the chunks of
// one answer at once or each after the client has the one before. Worker and client write and read
// bytes without allocating, so that the allocations are the door's, or those of httputil.ReverseProxy
// ("bare"). user-ns and sys-ns are the processor time of the whole process.
func BenchmarkStream(b *testing.B) {
	door := func(b *testing.B, worker string) string {
		return newBench(b, frontend.Options{}, &server{Server: &httptest.Server{URL: worker}, id: 1}).url
	}
	bare := func(b *testing.B, worker string) string {
		to, err := url.Parse(worker)
		if err != nil {
			b.Fatal(err)
		}
		s := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1})
		b.Cleanup(s.Close)
		return s.URL
	}
	for name, front := range map[string]func(*testing.B, string) string{"door": door, "bare": bare} {
		for way, step := range map[string]bool{"together": false, "one-by-one": true} {
			b.Run(name+"/"+way, func(b *testing.B) {
				l := listen(b)
				got := make(chan struct{}) // the client has a chunk
				go scripted(l, step, got)
				benchStream(b, front(b, "http://"+l.Addr().String()), step, got)
			})
		}
	}
}

// benchStream sends the requests of BenchmarkStream to a URL.
func benchStream(b *testing.B, front string, step bool, got chan<- struct{}) {
	c, err := net.Dial("tcp", strings.TrimPrefix(front, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	body := `{"prompt":[` + strings.Repeat("123456,", 90) + `1],"stream":true,"max_tokens":20}`
	request := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: door\r\nUser-Agent: bench\r\nAccept: */*\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	piece := make([]byte, 64<<10)
	read := func() {
		for kept := 0; !bytes.HasSuffix(piece[:kept], []byte("\r\n\r\n")) || !bytes.Contains(piece[:kept], []byte("[DONE]")); {
			n, err := c.Read(piece[kept:])
			if err != nil {
				b.Fatal(err)
			}
			if step && bytes.Contains(piece[kept:kept+n], []byte(chunk)) {
				got <- struct{}{}
			}
			kept += n
		}
	}
	b.ReportAllocs()
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		read()
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	b.ReportMetric(float64(after.Utime.Nano()-before.Utime.Nano())/float64(b.N), "user-ns/op")
	b.ReportMetric(float64(after.Stime.Nano()-before.Stime.Nano())/float64(b.N), "sys-ns/op")
}

func listen(tb testing.TB) net.Listener {
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// scripted is a worker that answers each request on a connection with a stream of 20 chunks, until
// the listener is closed. With step it sends each chunk after got has a value for the one before.
func scripted(l net.Listener, step bool, got <-chan struct{}) {
	frame := func(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }
	event := frame("data: " + chunk + "\n\n")
	head := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
	end := append(frame("data: "+usageOnly+"\n\ndata: [DONE]\n\n"), "0\r\n\r\n"...)
	whole := append(append(slices.Clone(head), bytes.Repeat(event, 20)...), end...)
	first := append(slices.Clone(head), event...)
	serve := func(c net.Conn) {
		piece := make([]byte, 64<<10)
		for kept := 0; ; kept = 0 {
			for !bytes.Contains(piece[:kept], []byte("\"max_tokens\":20")) || piece[kept-1] != '}' {
				n, err := c.Read(piece[kept:])
				if err != nil {
					return
				}
				kept += n
			}
			if !step {
				_, _ = c.Write(whole)
				continue
			}
			_, _ = c.Write(first)
			for range 19 {
				<-got
				_, _ = c.Write(event)
			}
			<-got
			_, _ = c.Write(end)
		}
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close() //nolint:errcheck // the door has left
		go serve(c)
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
	waittest.Pass(t, func() string {
		if perStream := (held() - before) / streams; perStream >= most {
			return fmt.Sprintf("%d bytes for each stream, want less than %d", perStream, most)
		}
		return ""
	})
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
