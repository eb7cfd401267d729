package control_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/control"
)

// tokenFile writes a file of tokens.
func tokenFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const twoTokens = "# operators\nanna 0123456789abcdef\n\n  ben  fedcba9876543210  \n"

// operators serves, at address, a handler that changes something at POST /change and refuses POST /busy.
func operators(t *testing.T, address string, tokens *control.Tokens) (ask func(method, path string, header ...string) int, logs *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /change", func(w http.ResponseWriter, r *http.Request) {
		control.About(r, "tier host")
		_, _ = io.WriteString(w, "{}")
	})
	mux.HandleFunc("POST /busy", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"error":"5 blocks are in use"}`+strings.Repeat(" ", 1000))
	})
	mux.HandleFunc("GET /state", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /ask", func(w http.ResponseWriter, r *http.Request) {
		control.ReadOnly(r)
		http.NotFound(w, r)
	})
	l, err := control.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: control.Operators{Tokens: tokens, Log: zap.New(core)}.Handler(mux)}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	client, base, err := control.Client(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return func(method, path string, header ...string) int {
		t.Helper()
		r, err := http.NewRequest(method, base+path, strings.NewReader(`{"secret":"prompt"}`))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}, logs
}

// lines returns the log as text, and checks that it tells neither tokens nor bodies.
func lines(t *testing.T, logs *observer.ObservedLogs) (all []string) {
	t.Helper()
	for _, e := range logs.TakeAll() {
		m := e.ContextMap()
		line := fmt.Sprintf("%s %s %q %s [%s] %v %s", e.Level, m["from"], m["token"], m["call"], m["about"], m["status"], m["reason"])
		if strings.Contains(line, "0123456789abcdef") || strings.Contains(line, "secret") {
			t.Errorf("the log tells too much: %s", line)
		}
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// TestOperatorsLogWhoDidWhat: the log has a line for each call with the token's name, what it was
// about and the result, also of calls that were refused.
func TestOperatorsLogWhoDidWhat(t *testing.T) {
	tokens, err := control.ReadTokens(tokenFile(t, twoTokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	ask, logs := operators(t, filepath.Join(t.TempDir(), "s"), tokens)
	const anna, ben = "Bearer 0123456789abcdef", "Bearer fedcba9876543210"
	who := fmt.Sprintf("uid %d pid %d", os.Getuid(), os.Getpid())
	for _, c := range []struct {
		method, path string
		header       []string
		status       int
		want         string
	}{
		{"POST", "/change?dry_run=true", []string{"Authorization", anna}, 200, `info ` + who + ` "anna" POST /change?dry_run=true [tier host] 200`},
		{"POST", "/busy", []string{"Authorization", ben}, 409, `info ` + who + ` "ben" POST /busy [] 409 {"error":"5 blocks are in use"}`},
		{"GET", "/state", []string{"Authorization", ben}, 200, `debug ` + who + ` "ben" GET /state [] 200`},
		{"POST", "/ask", []string{"Authorization", ben}, 404, `debug ` + who + ` "ben" POST /ask [] 404 404 page not found`},
		{"POST", "/absent?" + strings.Repeat("é", 200), []string{"Authorization", ben}, 404,
			`info ` + who + ` "ben" POST /absent?` + strings.Repeat("é", 143) + `... [] 404 404 page not found`},
		{"GET", "/state", nil, 401, `warn ` + who + ` "" GET /state [] 401 {"error":"header Authorization: want \"Bearer TOKEN\" with a token of --control-token-file"}`},
		{"POST", "/change", []string{"Authorization", "Bearer 0123456789abcdeg"}, 401, ""},
		{"POST", "/change", []string{"Authorization", anna, "Origin", "http://elsewhere.example"}, 403,
			`warn ` + who + ` "" POST /change [] 403 {"error":"header Origin \"http://elsewhere.example\": a browser sends this for a page of another site"}`},
	} {
		if got := ask(c.method, c.path, c.header...); got != c.status {
			t.Errorf("%s %s %q: status %d, want %d", c.method, c.path, c.header, got, c.status)
		}
		if got := lines(t, logs); len(got) != 1 || c.want != "" && got[0] != c.want {
			t.Errorf("log of %s %s:\n%q, want\n%q", c.method, c.path, got, c.want)
		}
	}
}

// TestCallsThatPanicAreLogged: the line says how far the call came, and the panic reaches the server.
func TestCallsThatPanicAreLogged(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	h := control.Operators{Log: zap.New(core)}.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control.About(r, strings.Repeat("x", 5000))
		w.WriteHeader(http.StatusAccepted)
		panic("no such tier")
	}))
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		func() {
			defer func() {
				if p := recover(); p != "no such tier" {
					t.Errorf("%s: panic %v is lost", method, p)
				}
			}()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/change", http.NoBody))
		}()
		want := fmt.Sprintf("error 192.0.2.1:1234 %q %s /change [%s...] 202", "", method, strings.Repeat("x", 1000))
		if got := lines(t, logs); len(got) != 1 || got[0] != want {
			t.Errorf("log %q, want\n%q", got, want)
		}
	}
}

// TestRefusedCallsDoNotFillTheLog: a caller without a token causes 30 lines, however often it asks.
// Calls that change something are all told.
func TestRefusedCallsDoNotFillTheLog(t *testing.T) {
	tokens, err := control.ReadTokens(tokenFile(t, twoTokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	ask, logs := operators(t, "127.0.0.1:0", tokens)
	for range 60 {
		ask("POST", "/change")
		ask("POST", "/change", "Authorization", "Bearer 0123456789abcdef")
	}
	refused, changed := 0, 0
	for _, line := range lines(t, logs) {
		if strings.HasPrefix(line, "warn 127.0.0.1:") {
			refused++
		} else if strings.HasPrefix(line, "info 127.0.0.1:") {
			changed++
		}
	}
	// A minute of the sampler may end between two of the calls.
	if refused < 30 || refused > 60 || changed != 60 {
		t.Errorf("%d lines of refused calls, %d of changes", refused, changed)
	}
}

// TestFilesBesideOperatorsNeedNoToken: the paths of the open mux are served without a token and without
// a line in the log, but not to a page with a host name of its own.
func TestFilesBesideOperatorsNeedNoToken(t *testing.T) {
	tokens, err := control.ReadTokens(tokenFile(t, twoTokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.DebugLevel)
	open, data := http.NewServeMux(), http.NewServeMux()
	open.HandleFunc("GET /page/", func(http.ResponseWriter, *http.Request) {})
	data.HandleFunc("GET /state", func(http.ResponseWriter, *http.Request) {})
	h := control.Operators{Tokens: tokens, Log: zap.New(core)}.HandlerBeside(open, data)
	server := httptest.NewServer(h)
	defer server.Close()
	for _, c := range []struct {
		path, host, token string
		status, lines     int
	}{
		{"/page/a.js", "", "", http.StatusOK, 0},
		{"/page/a.js", "elsewhere.example", "", http.StatusForbidden, 0},
		{"/state", "", "", http.StatusUnauthorized, 1},
		{"/other", "", "", http.StatusUnauthorized, 1},
		{"/state", "", "Bearer 0123456789abcdef", http.StatusOK, 1},
		{"/state", "elsewhere.example", "Bearer 0123456789abcdef", http.StatusForbidden, 1},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Host = c.host; c.token != "" {
			r.Header.Set("Authorization", c.token)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if n := len(logs.TakeAll()); resp.StatusCode != c.status || n != c.lines {
			t.Errorf("%s of %q with token %q: status %d, %d lines; want %d, %d", c.path, c.host, c.token, resp.StatusCode, n, c.status, c.lines)
		}
	}
}

func TestReadTokensNamesTheLine(t *testing.T) {
	for want, text := range map[string]string{
		"no token, want lines NAME TOKEN":             "# nobody\n",
		":2: 1 words, want NAME TOKEN":                "a 0123456789abcdef\nb\n",
		`:1: token of "a": 3 bytes, want at least 16`: "a 012\n",
		`:2: token of "b": "a" has the same`:          "a 0123456789abcdef\nb 0123456789abcdef\n",
		"65537 bytes, limit 65536":                    strings.Repeat("#", 65537),
	} {
		if tokens, err := control.ReadTokens(tokenFile(t, text), nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%v, %v; want %q", tokens, err, want)
		}
	}
	if _, err := control.ReadTokens(filepath.Join(t.TempDir(), "absent"), nil); err == nil {
		t.Error("a file that is not there is taken")
	}
	tokens, err := control.ReadTokens(tokenFile(t, twoTokens), nil)
	if err != nil || tokens.First() != "0123456789abcdef" {
		t.Errorf("first token %q, %v", tokens.First(), err)
	}
	if none, err := control.ReadTokens("", nil); none != nil || err != nil || none.First() != "" {
		t.Errorf("%v, %v without a file", none, err)
	}
}

// TestTokensAreReadAgain: a changed file of tokens holds within a second. A bad one is logged, and the
// tokens of before stay.
func TestTokensAreReadAgain(t *testing.T) {
	path := tokenFile(t, twoTokens)
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		tokens, err := control.ReadTokens(path, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ text, want string }{
			{"c aaaabbbbccccdddd\n", "aaaabbbbccccdddd"},
			{"c short\n", "aaaabbbbccccdddd"},
			{"d ddddccccbbbbaaaa\n", "ddddccccbbbbaaaa"},
		} {
			if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if got := tokens.First(); got != step.want {
				t.Errorf("%q: token %q, want %q", step.text, got, step.want)
			}
		}
		all := logs.All()
		if len(all) != 1 || !strings.Contains(fmt.Sprint(all[0].ContextMap()), "5 bytes, want at least 16") || strings.Contains(fmt.Sprint(all[0].ContextMap()), "short") {
			t.Errorf("logged %v, want one error without the token", all)
		}
	})
}
