package http

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestWithoutEventsAgentsAreNotAskedForThem: the request says so.
func TestWithoutEventsAgentsAreNotAskedForThem(t *testing.T) {
	for noEvents, want := range map[bool]string{true: "/v1/events?events=none", false: "/v1/events"} {
		asked := make(chan string, 100)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r.URL.RequestURI()
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		h, err := Connect(Options{Agents: []string{server.URL}, NoEvents: noEvents})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-asked; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
		h.Close()
		server.Close()
	}
}
