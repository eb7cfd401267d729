package control_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/control"
)

// serve answers "done" at address until the test ends.
func serve(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := control.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: control.Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }))}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return l
}

// TestListenMakesAPrivateSocket: the socket is for its own user, whatever the umask. The
// directory that is made for it keeps nobody from the agent's socket, which may be made
// there later for engines of other users. A client reaches it by its path.
func TestListenMakesAPrivateSocket(t *testing.T) {
	old := unix.Umask(0)
	path := filepath.Join(t.TempDir(), "made", "x.sock")
	serve(t, path)
	unix.Umask(old)
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o755} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info.Mode().Perm(), err, want)
		}
	}
	for _, address := range []string{path, "unix:" + path} {
		client, base, err := control.Client(address)
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		resp, err := client.Post(base+"/x", "", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
}

// TestListenReplacesADeadSocket: what a killed process left is replaced, a socket in use
// and a file of another kind are not.
func TestListenReplacesADeadSocket(t *testing.T) {
	dir := t.TempDir()
	dead, used, file := filepath.Join(dir, "dead"), filepath.Join(dir, "used"), filepath.Join(dir, "file")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, dead)
	serve(t, used)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		used: "another process is serving", file: "not a socket", "unix:x": "absolute path",
		"a/b": "absolute path", "localhost": "HOST:PORT", "localhost:x": "HOST:PORT",
		filepath.Join(dir, strings.Repeat("x", 108)): "limit 107",
	} {
		if l, err := control.Listen(address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", address, l, err, want)
		}
	}
}

// TestProtectRefusesBrowsers: a page of another site cannot have its reader's browser
// change anything, also not by a name that points at the loopback address. A browser reaches
// a socket through a forwarded port.
func TestProtectRefusesBrowsers(t *testing.T) {
	t.Run("port", func(t *testing.T) {
		refusesBrowsers(t, serve(t, "127.0.0.1:0").Addr().String())
	})
	t.Run("socket", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.sock")
		serve(t, path)
		refusesBrowsers(t, path)
	})
}

// refusesBrowsers fails the test unless the listener at address refuses the requests of pages.
func refusesBrowsers(t *testing.T, address string) {
	client, base, err := control.Client(address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		method, host string
		header       [2]string
		want         int
	}{
		{"POST", "", [2]string{}, 200},
		{"POST", "localhost:1", [2]string{}, 200},
		{"POST", "[::1]:7", [2]string{}, 200},
		{"POST", "", [2]string{"Sec-Fetch-Site", "none"}, 200},
		{"POST", "", [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"DELETE", "", [2]string{"Sec-Fetch-Site", "same-site"}, 403},
		{"POST", "", [2]string{"Origin", "http://elsewhere.example"}, 403},
		{"POST", "", [2]string{"Origin", "null"}, 403},
		{"POST", "elsewhere.example", [2]string{"Origin", "http://elsewhere.example"}, 403},
		{"GET", "elsewhere.example:80", [2]string{}, 403},
		{"GET", "localhost.elsewhere.example", [2]string{}, 403},
		{"GET", "", [2]string{"Sec-Fetch-Site", "cross-site"}, 200},
	} {
		r, err := http.NewRequest(c.method, base+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host // empty is the one of base
		if c.header[0] != "" {
			r.Header.Set(c.header[0], c.header[1])
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.want || c.want == 403 && !strings.HasPrefix(string(body), `{"error":`) {
			t.Errorf("%+v: status %d, %s", c, resp.StatusCode, body)
		}
	}
}

// TestRefuseCrossSiteTakesAnyHost: a port that has a proxy before it is asked by the
// proxy's name.
func TestRefuseCrossSiteTakesAnyHost(t *testing.T) {
	h := control.RefuseCrossSite(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("POST", "http://router.example/v1/route", http.NoBody)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
	r.Header.Set("Origin", "http://elsewhere.example")
	w = httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("status %d of a cross-site POST", w.Code)
	}
}

// TestGuardRefusesRebinding: at a loopback port a page's own name is refused for what changes
// the state. A proxy's requests have no origin, and trusted origins pass.
func TestGuardRefusesRebinding(t *testing.T) {
	g := control.Guard{Trusted: []string{"https://chat.example"}}
	h, err := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	for _, c := range []struct {
		method, host, origin string
		want                 int
	}{
		{"POST", "router.example", "", 200}, // a proxy on this machine
		{"POST", "router.example", "http://router.example", 403},
		{"DELETE", "router.example:80", "http://router.example", 403},
		{"GET", "router.example", "http://router.example", 200},
		{"POST", "localhost:1", "http://localhost:1", 200},
		{"POST", "127.0.0.1", "http://127.0.0.1", 200},
		{"POST", "router.example", "https://chat.example", 200},
		{"POST", "127.0.0.1", "https://chat.example", 200},
		{"POST", "127.0.0.1", "https://other.example", 403},
	} {
		r, err := http.NewRequest(c.method, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if r.Host = c.host; c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%+v: status %d", c, resp.StatusCode)
		}
	}
	for _, bad := range []string{"chat.example", "https://chat.example/path", ""} {
		if _, err := (&control.Guard{Trusted: []string{bad}}).Handler(h); err == nil {
			t.Errorf("origin %q is taken", bad)
		}
	}
}

// TestDefaultPathIsAbsolute: a socket's default place does not depend on where a process
// was started.
func TestDefaultPathIsAbsolute(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "relative")
	if p := control.DefaultPath("router-1"); control.Check(p, false) != nil || control.Check(p, true) == nil || control.Check("", true) == nil || control.Check("127.0.0.1:1", true) != nil || filepath.Base(p) != "router-1.sock" {
		t.Errorf("path %s", p)
	}
}
