package front

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func TestAddedTimesAreWithoutTheWorkersOwn(t *testing.T) {
	s := stream{began: 1000}
	first := fmt.Sprintf("data: {\"text\":\"%s\"}\n\n", stamp{arrived: 1300, sent: 9300})
	second := fmt.Sprintf("data: {\"text\":\"%s\"}\n\n", stamp{arrived: 1300, sent: 19300})
	s.add([]byte(first[:10]), 9000) // half an event says nothing
	s.add([]byte(first[10:]+second[:20]), 9700)
	s.add([]byte(second[20:]+"data: [DONE]\n\n"), 19450)
	if want := int64((9700 - 1000) - (9300 - 1300)); s.first != want {
		t.Errorf("added to the first byte: %d, want %d", s.first, want)
	}
	if want := []int64{150}; !slices.Equal(s.chunks, want) {
		t.Errorf("added to chunks: %v, want %v", s.chunks, want)
	}
	if s.events != 2 || !s.done || s.failed || s.whole() {
		t.Errorf("%+v: want 2 events, the end, and not the %d chunks of a whole answer", s, chunks)
	}
	s.add([]byte("data: {\"error\":{}}\n\n"), 0)
	if !s.failed {
		t.Error("an error in the stream was not seen")
	}
}

// TestDynamosChunksHaveTimesToo reads the events of Dynamo's frontend, whose workers send tokens.
func TestDynamosChunksHaveTimesToo(t *testing.T) {
	word := func(n int64) string { return strconv.FormatInt(n+36*36*36*36, 36)[1:] }
	const arrived = 23_456_789_012_345 // us
	const us, tick = int64(time.Microsecond), int64(dynamoTick)
	s := stream{began: arrived*us - 700, stamps: wordStamp}
	head := []string{word(arrived / dynamoBase / dynamoBase), word(arrived / dynamoBase % dynamoBase), word(arrived % dynamoBase)}
	sent := arrived*us + 1_002*tick
	s.add(fmt.Appendf(nil, "data: {\"choices\":[{\"delta\":{\"content\":\" %s %s\",\"role\":\"assistant\"}}]}\n\n", strings.Join(head, " "), word(1_002)), sent+9_000)
	s.add(fmt.Appendf(nil, "data: {\"choices\":[{\"text\":\" %s\",\"index\":0}]}\n\n", word(1_010)), sent+int64(chunkDelay)+8*tick+4_000)
	if want := int64(9_000 + 700); s.first != want {
		t.Errorf("added to the first byte: %d, want %d", s.first, want)
	}
	if want := []int64{4_000}; !slices.Equal(s.chunks, want) {
		t.Errorf("added to chunks: %v, want %v", s.chunks, want)
	}
	for _, event := range []string{
		`{"text":""}`, `{"text":" 0001 0002"}`, `{"text":" @1,2;"}`, `{"usage":{}}`, `{"text":" 0001`,
		fmt.Sprintf(`{"text":" %s"}`, word(vocabulary-1)), // too late to say when
	} {
		s.add([]byte("data: "+event+"\n\n"), sent)
	}
	if s.events != 2 {
		t.Errorf("%d chunks, want 2", s.events)
	}
}

func TestStampsOfOtherTextsAreNone(t *testing.T) {
	for _, text := range []string{"", "hello", "@1,2", "@a,2;", "@1;"} {
		if s, ok := parseStamp([]byte(text)); ok {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

func TestQuantilesAreValuesThatOccurred(t *testing.T) {
	values := make([]int64, 100)
	for i := range values {
		values[i] = int64(100 - i)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: %g", got)
	}
}

// TestCacheCountsWhatAnEngineWould decodes the published events beside the counts.
func TestCacheCountsWhatAnEngineWould(t *testing.T) {
	var batches []engineevent.Batch
	c := newCache(4, func(payload []byte) bool {
		var b engineevent.Batch
		if err := new(engineevent.Decoder).Decode(payload, &b); err != nil || len(b.Bad) > 0 {
			t.Fatal(err, b.Bad)
		}
		batches = append(batches, b)
		return true
	})
	prompt := func(n int, last uint32) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = uint32(i)
		}
		out[n-1] = last
		return out
	}
	for i, want := range []struct {
		tokens         []uint32
		cached, events int
	}{
		{prompt(3*blockSize, 7), 0, 1},
		{prompt(3*blockSize, 7), 2 * blockSize, 0}, // the last block is always computed
		{prompt(3*blockSize+1, 7), 2 * blockSize, 1},
		{prompt(5*blockSize, 9), 3 * blockSize, 2}, // capacity 4: the oldest blocks leave
		{prompt(3*blockSize, 7), 0, 1 + 1},
	} {
		batches = nil
		if got := c.admit(want.tokens); got != want.cached {
			t.Errorf("prompt %d: %d tokens cached, want %d", i, got, want.cached)
		}
		events := 0
		for _, b := range batches {
			events += len(b.Events)
		}
		if events != want.events {
			t.Errorf("prompt %d: %d events, want %d", i, events, want.events)
		}
		if len(c.resident) > c.capacity || len(c.order) != len(c.resident) {
			t.Fatalf("prompt %d: %d blocks resident in %d places, capacity %d", i, len(c.resident), len(c.order), c.capacity)
		}
	}
	last := batches[len(batches)-1].Events
	if k := last[len(last)-1].Kind; k != kvevent.Stored {
		t.Errorf("last event is %v", k)
	}
}

// TestPromptsShareBeginningsAsTokens renders chats as the stub does.
func TestPromptsShareBeginningsAsTokens(t *testing.T) {
	m, again := newMaker(1, false), newMaker(1, false)
	c := newCache(100_000, func([]byte) bool { return true })
	var prompts, cached, ids int
	for range 400 {
		one := m.next()
		if other := again.next(); string(other.body) != string(one.body) {
			t.Fatal("equal seeds made different requests")
		}
		var b body
		if err := json.Unmarshal(one.body, &b); err != nil {
			t.Fatal(err)
		}
		tokens, err := b.tokens()
		if err != nil {
			t.Fatal(err)
		}
		if len(tokens) < prefixTokens+ownTokens || len(tokens) > prefixTokens+ownTokens+16 {
			t.Fatalf("%d tokens", len(tokens))
		}
		if strings.HasSuffix(one.path, "/v1/completions") {
			ids++
		}
		prompts, cached = prompts+len(tokens), cached+c.admit(tokens)
	}
	if share := float64(cached) / float64(prompts); share < 0.6 || share > 0.8 {
		t.Errorf("one cache has %.0f %% of the tokens", 100*share)
	}
	if ids < 100 || ids > 300 {
		t.Errorf("%d of 400 prompts are token ids", ids)
	}
}

// TestLoadCountsErrorsAndLateAnswers sends requests to a stub through a proxy that spoils
// some of them.
func TestLoadCountsErrors(t *testing.T) {
	s := &stub{cache: newCache(1000, func([]byte) bool { return true })}
	inner := s.handler()
	turn := make(chan int, 1)
	turn <- 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := <-turn
		turn <- n + 1
		switch n % 4 {
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	g := newGenerator([]string{server.URL})
	defer g.close()
	l, err := g.run(t.Context(), newMaker(1, false).calls(8), 200)
	if err != nil {
		t.Fatal(err)
	}
	if l.failed != 4 || l.sent != 8 || l.reason == nil || len(l.firsts) != 4 || len(l.chunks) != 4*(chunks-1) {
		t.Errorf("%d of %d failed (%v), %d first bytes, %d chunks", l.failed, l.sent, l.reason, len(l.firsts), len(l.chunks))
	}
	if min := slices.Min(l.firsts); min < 0 {
		t.Errorf("added %d ns", min)
	}
}

func TestHeldStreamsEndWithTheLook(t *testing.T) {
	s := &stub{cache: newCache(1000, func([]byte) bool { return true })}
	server := httptest.NewServer(s.handler())
	defer server.Close()
	g := newGenerator([]string{server.URL})
	defer g.close()
	looked := false
	if err := g.hold(t.Context(), 5, func() error { looked = true; return nil }); err != nil || !looked {
		t.Error(err, looked)
	}
	if n := s.counts().Requests; n != 5 {
		t.Errorf("%d streams", n)
	}
}

func TestCountersTellHowPromptsWereRouted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# HELP x\nx_kv_routing_inputs_total{transport=\"http\",result=\"render\"} 6\n"+
			"x_kv_routing_inputs_total{result=\"preparation_rejected\"} 2\nother{result=\"render\"} 9\n")
	}))
	defer server.Close()
	at := slices.IndexFunc(contenders, func(c contender) bool { return c.name == "vllm-router-kv_aware" })
	client := cluster.NewClient(1)
	defer client.Close()
	share, words, err := contenders[at].routed(t.Context(), client.At("x", strings.TrimPrefix(server.URL, "http://")))
	if err != nil || share != 0.75 || !strings.Contains(words, `result="preparation_rejected" 2`) {
		t.Errorf("%g, %q, %v", share, words, err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		"rate": {Rate: -1}, "duration": {Duration: time.Millisecond}, "rounds": {Rounds: 100}, "streams": {Streams: -1}, "only": {Only: []string{"x"}},
	} {
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := new(Options).Validate(); err != nil {
		t.Error(err)
	}
}

func TestIdleConnectionsAreAnsweredAndStayOpen(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	open, err := connect(t.Context(), server.Listener.Addr().String(), 20)
	if err != nil || len(open) != 20 {
		t.Fatalf("%d connections, %v", len(open), err)
	}
	if err := alive(open); err != nil {
		t.Error(err)
	}
	server.CloseClientConnections()
	if err := alive(open); err == nil || !strings.HasPrefix(err.Error(), "idle connection 1 of 20: ") {
		t.Errorf("error %v after the server closed all connections", err)
	}
	for _, c := range open {
		_ = c.Close() // the server has closed it
	}
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	open, err = connect(t.Context(), refusing.Listener.Addr().String(), 2)
	if err == nil {
		t.Error("answers with 404 are none")
	}
	for _, c := range open {
		_ = c.Close()
	}
}

func TestUsageIsThisProcesss(t *testing.T) {
	if got := groupOf([]byte("12 (a) b) S 1 77 3")); got != 77 {
		t.Errorf("process group %d, want 77", got)
	}
	s := cluster.NewSupervisor(t.TempDir(), nil)
	defer s.Stop(0)
	p, err := s.Start(cluster.Spec{Name: "busy", Command: []string{"sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo '{}'; read x"}})
	if err != nil {
		t.Fatal(err)
	}
	var line struct{}
	if err := p.Next(context.WithoutCancel(t.Context()), &line); err != nil {
		t.Fatal(err)
	}
	u, err := groupUsage(p.PID())
	if err != nil || u.nanos < int64(time.Millisecond) || u.bytes < 100<<10 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestLastLineComparesWithTheBestPeer(t *testing.T) {
	one := func(cpu, first float64) []figures {
		return []figures{{cpuNanos: cpu, renderNanos: 1000, streamsBytes: 5000, load: loaded{sent: 1, firsts: []int64{int64(first)}}}}
	}
	o := Options{PeerBin: "x"}
	o = o.withDefaults()
	rounds := map[string][]figures{}
	o.NoDynamo = "it is not at PyPI"
	for i, name := range names() {
		rounds[name] = one(float64(1+i)*1e5, float64(9-i)*1e6)
	}
	rounds["smg-cache_aware"][0].load.failed = 1 // the best first byte does not count
	text := lines(&o, o.chosen(), rounds)
	want := "bench-front: added_ttfb_p99_ms=8.00 cpu_us_per_request=201 best_peer_cpu_us=401 best_peer_p99_ms=5.00 streams_mb_per_1k=5.0\n"
	if row := fmt.Sprintf("%-24s not run: it is not at PyPI\n", "dynamo-kv"); !strings.Contains(text, row) {
		t.Errorf("%s\nwant a row %q", text, row)
	}
	if !strings.HasSuffix(text, want) {
		t.Errorf("%s\nwant at the end\n%s", text, want)
	}
}
