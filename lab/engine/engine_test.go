package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// liveEngine is an engine that serves on real sockets.
type liveEngine struct {
	t      *testing.T
	url    string
	at     Endpoints
	client *http.Client
	stop   func() error
}

// serve runs an engine until the test ends or stop is called.
func serve(t *testing.T, o Options) *liveEngine {
	t.Helper()
	e, err := New(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan Endpoints, 1)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, func(at Endpoints) { ready <- at }) }()
	s := &liveEngine{t: t, client: &http.Client{Transport: new(http.Transport)}}
	select {
	case s.at = <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	s.url = "http://" + s.at.HTTP
	stopped := false
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		s.client.CloseIdleConnections()
		return <-ended
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// post sends a JSON body and returns the status and the answer's lines.
func (s *liveEngine) post(ctx context.Context, path, body string) (int, []GenerateEvent) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var lines []GenerateEvent
	for d := json.NewDecoder(resp.Body); d.More(); {
		var e GenerateEvent
		if err := d.Decode(&e); err != nil {
			break // cut off by its context
		}
		lines = append(lines, e)
	}
	return resp.StatusCode, lines
}

func (s *liveEngine) state() (state State) {
	s.t.Helper()
	resp, err := s.client.Get(s.url + "/v1/state")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		s.t.Fatal(err)
	}
	return state
}

// settle waits until the engine is idle.
func (s *liveEngine) settle() State {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		state := s.state()
		if state.Idle {
			return state
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("engine is not idle after 20 s: %+v", state)
		}
	}
}

func generateBody(tokens []uint32, out int) string {
	b, err := json.Marshal(GenerateRequest{RequestID: "r", Tokens: tokens, OutputTokens: out})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func realOptions() Options {
	o := testOptions(64)
	o.SpeedUp = 100
	return o
}

func TestGenerateStreamsFirstTokenAndOutput(t *testing.T) {
	s := serve(t, realOptions())
	status, lines := s.post(t.Context(), "/v1/generate", generateBody(tokenRun(0, 10), 3))
	if status != http.StatusOK || len(lines) != 2 {
		t.Fatalf("status %d, %+v", status, lines)
	}
	if lines[0].Event != "first_token" || lines[0].Served == nil || sum(*lines[0].Served) != 10 {
		t.Errorf("first line %+v", lines[0])
	}
	if lines[1].Event != "done" || len(lines[1].Output) != 3 {
		t.Errorf("last line %+v", lines[1])
	}
	state := s.settle()
	if state.WorkerID != 1 || len(state.Blocks) != 3 || state.Stats.Finished != 1 || state.Stats.FramesSent == 0 {
		t.Errorf("state %+v", state)
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	s := serve(t, realOptions())
	for body, want := range map[string]string{
		`{`:                                  "body",
		`{"tokens":[],"output_tokens":1}`:    "tokens: must not be empty",
		`{"tokens":[1],"output_tokens":0}`:   "output_tokens: 0 is not in 1..256",
		`{"tokens":[1],"output_tokens":256}`: "more than the 256",
		`{"tokens":[-1],"output_tokens":1}`:  "tokens",
	} {
		status, lines := s.post(t.Context(), "/v1/generate", body)
		if status != http.StatusBadRequest || len(lines) != 1 || lines[0].Event != "error" || !strings.Contains(lines[0].Message, want) {
			t.Errorf("%s: %d %+v, want an error with %q", body, status, lines, want)
		}
	}
}

func TestClientThatGoesAwayAbortsItsRequest(t *testing.T) {
	o := realOptions()
	o.SpeedUp, o.StepBase = 1, 20*time.Millisecond
	s := serve(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/generate", strings.NewReader(generateBody(tokenRun(0, 10), 200)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req) // answers with the first token
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	resp.Body.Close()
	if state := s.settle(); state.Stats.Aborted != 1 || state.Stats.DeviceFree != 64 {
		t.Errorf("state %+v", state)
	}
}

func TestResetOverHTTP(t *testing.T) {
	s := serve(t, realOptions())
	s.post(t.Context(), "/v1/generate", generateBody(tokenRun(0, 10), 1))
	s.settle()
	resp, err := s.client.Post(s.url+"/v1/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil || strings.TrimSpace(body.String()) != `{"success":true}` {
		t.Errorf("answer %q (%v)", body.String(), err)
	}
	if state := s.settle(); len(state.Blocks) != 0 || state.Stats.Resets != 1 {
		t.Errorf("state %+v", state)
	}
}

// TestEventsOverZMQDescribeTheDevice asks a running engine for its whole
// replay and compares what a subscriber would believe with its state.
func TestEventsOverZMQDescribeTheDevice(t *testing.T) {
	o := realOptions()
	o.DeviceBlocks, o.DropFrames = 12, 2
	s := serve(t, o)
	for i := range 8 {
		s.post(t.Context(), "/v1/generate", generateBody(tokenRun(100*i, 20), 9))
	}
	state := s.settle()
	if state.Stats.FramesDropped != 2 {
		t.Errorf("%d frames dropped, want 2", state.Stats.FramesDropped)
	}
	var d engineevent.Decoder
	held := map[uint64]int{}
	for i, payload := range s.replayAll() {
		var b engineevent.Batch
		if err := d.Decode(payload, &b); err != nil || len(b.Bad) > 0 || !b.HasRank {
			t.Fatalf("batch %d: %v %v", i, err, b.Bad)
		}
		for _, e := range b.Events {
			for _, h := range e.BlockHashes {
				if e.Kind == kvevent.Stored {
					held[uint64(h)]++
				} else {
					held[uint64(h)]--
				}
			}
		}
	}
	n := 0
	for _, copies := range held {
		if copies > 0 {
			n++
		}
	}
	if n != len(state.Blocks) {
		t.Errorf("a subscriber believes in %d blocks, the device holds %d", n, len(state.Blocks))
	}
}

// replayAll returns the payloads of all batches, whose numbers must run from 0.
func (s *liveEngine) replayAll() (payloads [][]byte) {
	s.t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		s.t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	deal, err := ctx.NewSocket(zmq.DEALER)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		_ = deal.Close()
		_ = ctx.Term()
	}()
	if err := errors.Join(deal.SetLinger(0), deal.SetRcvtimeo(10*time.Second), deal.Connect(s.at.Replay)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := deal.SendMessage("", make([]byte, 8)); err != nil { // from number 0 on
		s.t.Fatal(err)
	}
	for {
		msg, err := deal.RecvMessageBytes(0)
		if err != nil || len(msg) != 4 {
			s.t.Fatalf("replay message %q: %v", msg, err)
		}
		switch seq := binary.BigEndian.Uint64(msg[2]); seq {
		case math.MaxUint64:
			return payloads
		case uint64(len(payloads)):
			payloads = append(payloads, msg[3])
		default:
			s.t.Fatalf("batch %d follows %d others", seq, len(payloads))
		}
	}
}

func TestEngineWithoutItsAgentServesAndStopsInTime(t *testing.T) {
	o := realOptions()
	o.AgentSocket = t.TempDir() + "/no-agent.sock"
	s := serve(t, o)
	status, lines := s.post(t.Context(), "/v1/generate", generateBody(tokenRun(0, 10), 1))
	if status != http.StatusOK || len(lines) != 2 {
		t.Errorf("status %d, %+v", status, lines)
	}
	begin := time.Now()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("stopping took %s", took)
	}
}

func TestOptionsErrorsNameTheField(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"worker id":     func(o *Options) { o.Worker.ID = 0 },
		"page_size":     func(o *Options) { o.Namespace.BlockSize = 0 },
		"device blocks": func(o *Options) { o.DeviceBlocks = -1 },
		"speed-up":      func(o *Options) { o.SpeedUp = -1 },
		"drop frames":   func(o *Options) { o.DropFrames = -1 },
		"prefill":       func(o *Options) { o.PrefillRate = -1 },
	} {
		o := realOptions()
		change(&o)
		if _, err := New(o, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	if err := (Options{Worker: realOptions().Worker, Namespace: testNamespace()}).Validate(); err != nil {
		t.Errorf("zero options: %v", err)
	}
}

func TestAddressInUseIsOneClearError(t *testing.T) {
	s := serve(t, realOptions())
	o := realOptions()
	o.HTTPAddr = s.at.HTTP
	e, err := New(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = e.Run(t.Context(), func(Endpoints) { t.Error("ready on an address in use") })
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", s.at.HTTP)) {
		t.Errorf("error %v, want one that names %s", err, s.at.HTTP)
	}
}
