package control

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// Guard refuses requests that a browser sends for a page of another site. The zero value is
// ready.
type Guard struct {
	// Trusted are origins whose pages may send every request, such as https://chat.example.
	Trusted []string
	// Refuse answers a refused request. Nil answers 403 with {"error": text}.
	Refuse func(w http.ResponseWriter, r *http.Request, text string)
}

// CheckOrigin returns an error unless origin is SCHEME://HOST or SCHEME://HOST:PORT.
func CheckOrigin(origin string) error {
	var p http.CrossOriginProtection
	if err := p.AddTrustedOrigin(origin); err != nil {
		return fmt.Errorf("%.300q: want SCHEME://HOST or SCHEME://HOST:PORT", origin)
	}
	return nil
}

// Handler returns a handler that passes requests to h. It refuses requests of a page of another
// site. At a loopback address and at a Unix socket it refuses those of a page with a host name
// other than localhost: a page can have its own name point there, and then passes for the same
// site. GET, HEAD and OPTIONS pass, and so do requests without the header Origin, which browsers
// set and programs do not. The error is that of CheckOrigin.
func (g *Guard) Handler(h http.Handler) (http.Handler, error) {
	var p http.CrossOriginProtection
	for _, origin := range g.Trusted {
		if err := CheckOrigin(origin); err != nil {
			return nil, err
		}
		_ = p.AddTrustedOrigin(origin) // CheckOrigin has tried
	}
	deny := g.Refuse
	if deny == nil {
		deny = func(w http.ResponseWriter, _ *http.Request, text string) { refuse(w, http.StatusForbidden, text) }
	}
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deny(w, r, "header Origin "+quote(r.Header.Get("Origin"))+": a browser sends this for a page of another site")
	}))
	sameSite := p.Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin != "" && !safe(r.Method) && renamed(r) && !slices.Contains(g.Trusted, origin) {
			deny(w, r, "header Host "+quote(r.Host)+": a browser's page has this name for a local address; want an address or localhost")
			return
		}
		sameSite.ServeHTTP(w, r)
	}), nil
}

// RefuseCrossSite returns the handler of a zero Guard for h.
func RefuseCrossSite(h http.Handler) http.Handler {
	guarded, _ := (&Guard{}).Handler(h) // without origins there is no error
	return guarded
}

// Protect returns a handler for a listener of Listen. Besides what RefuseCrossSite refuses, it
// refuses every request to a loopback port or a Unix socket by a host name other than localhost:
// only operators have business here, and they know the address.
func Protect(h http.Handler) http.Handler {
	sameSite := RefuseCrossSite(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if renamed(r) {
			refuse(w, http.StatusForbidden, "header Host "+quote(r.Host)+": want an address or localhost")
			return
		}
		sameSite.ServeHTTP(w, r)
	})
}

// safe reports whether requests of a method change nothing.
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// renamed reports whether a request came to a loopback address or a Unix socket by a name other
// than localhost. Browsers reach a socket through a forwarded port.
func renamed(r *http.Request) bool {
	switch local := r.Context().Value(http.LocalAddrContextKey).(type) {
	case *net.TCPAddr:
		return local.IP.IsLoopback() && !localHost(r.Host)
	case *net.UnixAddr:
		return !localHost(r.Host)
	}
	return false
}

// localHost reports whether the Host header names an address or localhost.
func localHost(header string) bool {
	if _, err := netip.ParseAddrPort(header); err == nil {
		return true
	}
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "localhost"
}

// quote returns at most the first 200 bytes of a header in quotes.
func quote(s string) string {
	b, _ := json.Marshal(s[:min(len(s), 200)]) // a string always has JSON
	return string(b)
}

// refuse answers a request with a status and an error in JSON.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // the client has gone: nobody to tell
		Error string `json:"error"`
	}{text})
}
