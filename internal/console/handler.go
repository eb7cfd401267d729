package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"time"
)

// Path is where the page is served.
const Path = "/console/"

// Kind says whose console the page is.
type Kind string

// The kinds.
const (
	Agent  Kind = "agent"
	Router Kind = "router"
)

//go:embed web
var web embed.FS

// policy is the Content-Security-Policy of the page. The page has scripts, styles and data of its
// own listener, and no frames around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is a file of the page.
type file struct {
	body       []byte
	mime, etag string
}

// Mount adds the page to a mux: at Path, and for a browser that opens the root of the listener.
// version is the program's.
func Mount(mux *http.ServeMux, kind Kind, version string) {
	mux.Handle("GET "+Path, handler(kind, version))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, Path, http.StatusFound) })
}

// handler returns the handler of Path: the page, its files, and about.json, which says whose console
// it is. The handler answers GET and HEAD.
func handler(kind Kind, version string) http.Handler {
	files := pageFiles()
	about, _ := json.Marshal(struct { // strings always have JSON
		Kind    Kind   `json:"kind"`
		Version string `json:"version"`
	}{kind, version})
	files["about.json"] = newFile("about.json", about)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		name := r.URL.Path[min(len(Path), len(r.URL.Path)):]
		if name == "" {
			name = "index.html"
		}
		f, ok := files[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		// A browser asks each time, and gets 304 for a file that has not changed.
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Type", f.mime)
		h.Set("ETag", f.etag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(f.body))
	})
}

// pageFiles returns the embedded files by their names.
func pageFiles() map[string]file {
	files := make(map[string]file)
	entries, err := fs.ReadDir(web, "web")
	if err != nil {
		panic(fmt.Sprintf("BUG: the page is not embedded: %v", err))
	}
	for _, e := range entries {
		body, err := fs.ReadFile(web, "web/"+e.Name())
		if err != nil {
			panic(fmt.Sprintf("BUG: a file of the page is not embedded: %v", err))
		}
		files[e.Name()] = newFile(e.Name(), body)
	}
	return files
}

func newFile(name string, body []byte) file {
	kind := mime.TypeByExtension(path.Ext(name))
	switch path.Ext(name) { // a machine's table may lack or change them
	case ".html":
		kind = "text/html; charset=utf-8"
	case ".js":
		kind = "text/javascript; charset=utf-8"
	case ".css":
		kind = "text/css; charset=utf-8"
	case ".svg":
		kind = "image/svg+xml"
	case ".json":
		kind = "application/json"
	}
	return file{body: body, mime: kind, etag: fmt.Sprintf(`"%x"`, sha256.Sum256(body))}
}
