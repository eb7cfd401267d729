package control

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
)

// RefuseCrossSite returns a handler that answers 403 to what a browser sends
// for a page of another site, unless the method is GET, HEAD or OPTIONS.
// Programs other than browsers do not notice.
func RefuseCrossSite(h http.Handler) http.Handler {
	var p http.CrossOriginProtection
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, "header Origin "+quote(r.Header.Get("Origin"))+": a browser sends this for a page of another site")
	}))
	return p.Handler(h)
}

// Protect returns h protected from web pages, for a listener of Listen. It refuses cross-site
// requests. At a loopback port it also refuses host names other than localhost, because a page can
// have its own name point to the loopback address and then passes for the same site.
func Protect(h http.Handler) http.Handler {
	sameSite := RefuseCrossSite(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if local != nil && local.IP.IsLoopback() && !localHost(r.Host) {
			refuse(w, "header Host "+quote(r.Host)+": want an address or localhost")
			return
		}
		sameSite.ServeHTTP(w, r)
	})
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

func refuse(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(struct { // the client has gone: nobody to tell
		Error string `json:"error"`
	}{text})
}
