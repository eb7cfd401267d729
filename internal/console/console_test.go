package console

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"context"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get asks a console for a path.
func get(t *testing.T, h http.Handler, path string, header ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Result(), string(body)
}

// Every answer forbids scripts and styles that are not files of this listener.
func TestPolicy(t *testing.T) {
	h := handler(Router, "1.2")
	for _, path := range []string{"/console/", "/console/app.js", "/console/absent", "/console/about.json"} {
		r, _ := get(t, h, path)
		policy := r.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy %q lacks %q", path, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: header %v", path, r.Header)
		}
	}
}

// Files have their types and an ETag, by which a browser loads them once.
func TestFiles(t *testing.T) {
	h := handler(Agent, "1.2")
	for path, kind := range map[string]string{
		"": "text/html; charset=utf-8", "index.html": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8",
		"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml", "about.json": "application/json",
	} {
		r, body := get(t, h, Path+path)
		etag := r.Header.Get("ETag")
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != kind || body == "" || len(etag) < 10 {
			t.Errorf("%q: status %d, %v", path, r.StatusCode, r.Header)
		}
		if r, body = get(t, h, Path+path, "If-None-Match", etag); r.StatusCode != http.StatusNotModified || body != "" {
			t.Errorf("%q again: status %d, %d bytes", path, r.StatusCode, len(body))
		}
	}
	for _, path := range []string{"web", "../doc.go", "web/app.js", "app.js/"} {
		if r, _ := get(t, h, Path+path); r.StatusCode != http.StatusNotFound {
			t.Errorf("%q: status %d, want 404", path, r.StatusCode)
		}
	}
	if _, body := get(t, h, Path+"about.json"); body != `{"kind":"agent","version":"1.2"}` {
		t.Errorf("about %s", body)
	}
}

// maxPage bounds the bytes of the page. It is read over slow tunnels.
const maxPage = 96 << 10

// The page is small, has no inline script or style, and names nothing elsewhere.
func TestPageIsSmallAndItsOwn(t *testing.T) {
	total := 0
	files := pageFiles()
	imports := regexp.MustCompile(`from '\./([^']+)'|(?:src|href)="([^"]+)"`)
	for name, f := range files {
		text := string(f.body)
		total += len(text)
		for _, bad := range []string{"<script>", "<style", " style=", "onclick=", "innerHTML", "eval("} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q", name, bad)
			}
		}
		if rest := strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""); strings.Contains(rest, "://") {
			t.Errorf("%s names an address elsewhere", name)
		}
		for _, m := range imports.FindAllStringSubmatch(text, -1) {
			target := m[1] + m[2]
			if _, ok := files[target]; !ok && !strings.HasPrefix(target, "#") {
				t.Errorf("%s refers to %q, which is no file of the page", name, target)
			}
		}
	}
	if total > maxPage {
		t.Errorf("the page has %d bytes, limit %d", total, maxPage)
	}
}

// A history has a point every five seconds, and the last fifteen minutes once it is full.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0.0
		h := NewHistory(func() []Value {
			n++
			return []Value{{"requests", n}, {"twice", 2 * n}}
		})
		if p := h.Past(); len(p.At) != 0 || len(p.Series) != 0 {
			t.Errorf("a new history has %+v", p)
		}
		ctx, stop := context.WithCancel(t.Context())
		go h.Run(ctx)
		time.Sleep(11 * time.Second)
		p := h.Past()
		if len(p.At) != 3 || p.At[2]-p.At[0] != 10_000 || p.Series["twice"][2] != 6 {
			t.Errorf("after 11 s: %+v", p)
		}
		time.Sleep(20 * time.Minute)
		p = h.Past()
		if len(p.At) != maxPoints || p.Series["requests"][0] != n-maxPoints+1 || p.Series["requests"][maxPoints-1] != n {
			t.Errorf("after 20 min: %d points from %v to %v of %v", len(p.At), p.Series["requests"][0], p.Series["requests"][maxPoints-1], n)
		}
		for i := 1; i < maxPoints; i++ {
			if p.At[i]-p.At[i-1] != 5000 {
				t.Fatalf("point %d is %d ms after the one before it", i, p.At[i]-p.At[i-1])
			}
		}
		stop()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, nil)
		var answer Past
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.PeriodSeconds != 5 || len(answer.Series) != 2 {
			t.Errorf("%v: %s", err, w.Body.String()[:100])
		}
	})
}

// The root of a listener leads to the page; other paths are left to the mux.
func TestMount(t *testing.T) {
	mux := http.NewServeMux()
	Mount(mux, Router, "1.2")
	for path, want := range map[string]int{"/": http.StatusFound, "/console": http.StatusTemporaryRedirect, "/console/": http.StatusOK, "/v1/stats": http.StatusNotFound} {
		if r, _ := get(t, mux, path); r.StatusCode != want || want/100 == 3 && r.Header.Get("Location") != Path {
			t.Errorf("%s: status %d to %q, want %d", path, r.StatusCode, r.Header.Get("Location"), want)
		}
	}
}
