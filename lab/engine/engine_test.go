package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
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
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("stopping took %s", took)
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
