package envoy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience bounds each wait, look is the time between two looks.
	patience = 30 * time.Second
	look     = 10 * time.Millisecond
)

// bed is a router and an Envoy in front of two workers.
type bed struct {
	t          *testing.T
	logs       string
	supervisor *cluster.Supervisor
	calls      *cluster.Client
	workers    []*worker

	// env is added to the environment of routers.
	env     []string
	router  *cluster.Process
	extProc string
	http    cluster.Endpoint
	// url is Envoy's listener.
	url    string
	client *http.Client
}

// newBed starts workers and a router with flags. The test is skipped without an Envoy.
func newBed(t *testing.T, flags ...string) *bed {
	t.Helper()
	if os.Getenv("BLOCKYARD_ENVOY") == "" {
		t.Skip("BLOCKYARD_ENVOY names no Envoy: make test-envoy")
	}
	b := &bed{t: t, logs: t.TempDir(), calls: cluster.NewClient(1),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	b.supervisor = cluster.NewSupervisor(b.logs, nil)
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		b.calls.Close()
		b.supervisor.Stop(0)
		if t.Failed() {
			b.showLogs()
		}
	})
	for range 2 {
		b.workers = append(b.workers, newWorker(t))
	}
	b.startRouter("127.0.0.1:0", flags...)
	return b
}

// showLogs prints the ends of all logs.
func (b *bed) showLogs() {
	files, err := os.ReadDir(b.logs)
	if err != nil {
		b.t.Log(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".log") {
			continue
		}
		text, err := os.ReadFile(b.logs + "/" + f.Name())
		if err != nil {
			text = []byte(err.Error())
		}
		b.t.Logf("%s:\n%s", f.Name(), text[max(0, len(text)-6000):])
	}
}

// startRouter starts the router, with its endpoint picker at an address, and waits until it
// knows every worker exactly.
func (b *bed) startRouter(extProc string, flags ...string) {
	b.t.Helper()
	command := []string{
		cmp.Or(os.Getenv("BLOCKYARD_BIN"), "../../bin/blockyard"), "router", "--router-mode=kv",
		"--http=127.0.0.1:0", "--ext-proc=" + extProc, "--access-log",
	}
	for _, w := range b.workers {
		command = append(command, "--worker="+w.url)
	}
	var ready struct {
		HTTP    string `json:"http"`
		ExtProc string `json:"ext_proc"`
	}
	var err error
	spec := cluster.Spec{Name: "router", Stage: 1, Command: append(command, flags...), Env: b.env}
	b.router, err = b.supervisor.StartReady(b.t.Context(), spec, &ready)
	if err != nil {
		b.t.Fatal(err)
	}
	b.http, b.extProc = b.calls.At("router", ready.HTTP), ready.ExtProc
	b.until("the router knows the workers", func() (bool, error) {
		var known []struct {
			Endpoint, Quality string
		}
		err := b.http.Get(b.t.Context(), "/v1/workers", &known)
		exact := 0
		for _, w := range known {
			if w.Endpoint != "" && w.Quality == "exact" {
				exact++
			}
		}
		return exact == len(b.workers), err
	})
}

// until waits until holds.
func (b *bed) until(what string, holds func() (bool, error)) {
	b.t.Helper()
	if err := cluster.Until(b.t.Context(), patience, look, holds); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// Blocks of YAML in docs/envoy.md.
const (
	complete = iota
	fallsOpen
	encrypted
	destination
)

// documented returns the block of docs/envoy.md with a number, from 0.
func documented(t *testing.T, number int) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if number >= len(blocks) {
		t.Fatalf("docs/envoy.md has %d blocks of YAML, want more than %d", len(blocks), number)
	}
	return string(blocks[number][1])
}

// replace returns text with one occurrence of old replaced.
func replace(t *testing.T, text, old, with string) string {
	t.Helper()
	if n := strings.Count(text, old); n != 1 {
		t.Fatalf("docs/envoy.md: %q occurs %d times in the configuration, want once", old, n)
	}
	return strings.Replace(text, old, with, 1)
}

// buffered returns docs/envoy.md's configuration for requests without a router.
func buffered(t *testing.T) string {
	t.Helper()
	before, rest, found := strings.Cut(documented(t, complete), "                      processing_mode:\n")
	_, after, more := strings.Cut(rest, "                        response_trailer_mode: SEND\n")
	if !found || !more {
		t.Fatal("docs/envoy.md: the configuration has no processing_mode")
	}
	return before + documented(t, fallsOpen) + after
}

// startEnvoy runs Envoy with a configuration of docs/envoy.md, at other ports.
func (b *bed) startEnvoy(configuration string) {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		b.t.Fatal(err)
	}
	ports := map[string]string{"8080": address, "9002": b.extProc}
	for i, w := range b.workers {
		if port := strconv.Itoa(8001 + i); strings.Contains(configuration, "port_value: "+port) {
			ports[port] = strings.TrimPrefix(w.url, "http://")
		}
	}
	for old, with := range ports {
		_, port, err := net.SplitHostPort(with)
		if err != nil {
			b.t.Fatal(err)
		}
		configuration = replace(b.t, configuration, "port_value: "+old+"}", "port_value: "+port+"}")
	}
	file := b.logs + "/envoy.yaml"
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		b.t.Fatal(err)
	}
	envoy, err := b.supervisor.Start(cluster.Spec{Name: "envoy", Command: []string{
		os.Getenv("BLOCKYARD_ENVOY"), "-c", file, "--concurrency", "1", "--disable-hot-restart", "-l", "warning",
	}, Line: func([]byte) {}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.url = "http://" + address
	b.until("Envoy listens", func() (bool, error) {
		if envoy.Exited() {
			return false, errors.New("Envoy has ended")
		}
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	})
}

// answer is an answer of Envoy.
type answer struct {
	status  int
	headers http.Header
	body    string
}

// send sends a request to Envoy. The caller closes the answer's body.
func (b *bed) send(ctx context.Context, path, body string) *http.Response {
	b.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

// ask sends a request to Envoy and reads the whole answer.
func (b *bed) ask(body string) answer {
	b.t.Helper()
	resp := b.send(b.t.Context(), "/v1/completions", body)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatalf("status %d: %v after %d bytes", resp.StatusCode, err, len(text))
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// errorCode returns the code of an error in OpenAI's shape.
func (a answer) errorCode(t *testing.T) string {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type string
			Code          any
		}
	}
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("status %d: body %q is no error of OpenAI's shape (%v)", a.status, a.body, err)
	}
	if kind := a.headers.Get("Content-Type"); kind != "application/json" {
		t.Errorf("status %d: the content type is %q", a.status, kind)
	}
	return fmt.Sprint(e.Error.Code)
}

// route calls the router's own interface.
func (b *bed) route(method string, tokens []int, into any) {
	b.t.Helper()
	ask := map[string]any{"method": method, "tokens": tokens}
	if method == "new" {
		ask["update_states"] = false
	}
	if err := b.http.Post(b.t.Context(), "/v1/route", ask, into); err != nil {
		b.t.Fatal(err)
	}
}

// dryRun returns the worker that the router would choose, as the door's headers name it, and
// its URL.
func (b *bed) dryRun(tokens []int) (worker, url string) {
	b.t.Helper()
	var a struct {
		Worker   uint64 `json:"worker_id"`
		Rank     uint32 `json:"dp_rank"`
		Endpoint string `json:"endpoint"`
	}
	b.route("new", tokens, &a)
	return fmt.Sprintf("%d/%d", a.Worker, a.Rank), a.Endpoint
}

// known waits until the router knows a prompt's full blocks at some worker.
func (b *bed) known(tokens []int) {
	b.t.Helper()
	b.until("the router knows the prompt's blocks", func() (bool, error) {
		var a struct {
			Overlaps []struct {
				Device int `json:"device"`
			} `json:"overlaps"`
		}
		b.route("overlap", tokens, &a)
		for _, o := range a.Overlaps {
			if o.Device >= len(tokens)/blockSize {
				return true, nil
			}
		}
		return false, nil
	})
}

// metric returns the sum of a metric of the router over its labels.
func (b *bed) metric(name string) (sum float64) {
	b.t.Helper()
	row := regexp.MustCompile(`^` + name + `(?:\{[^}]*\})? (\S+)$`)
	err := b.http.Do(b.t.Context(), cluster.Request{Method: http.MethodGet, Path: "/metrics"}, func(r io.Reader) error {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			if m := row.FindSubmatch(bytes.TrimSpace(line)); m != nil {
				v, err := strconv.ParseFloat(string(m[1]), 64)
				if err != nil {
					return err
				}
				sum += v
			}
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return sum
}

// booked returns the requests that the router has booked.
func (b *bed) booked() float64 {
	b.t.Helper()
	return b.metric("blockyard_router_model_active_requests")
}

// idle waits until no request runs and none is booked.
func (b *bed) idle() {
	b.t.Helper()
	b.until("no request runs and none is booked", func() (bool, error) {
		return b.booked() == 0 && b.metric("blockyard_frontend_requests_running") == 0, nil
	})
}
