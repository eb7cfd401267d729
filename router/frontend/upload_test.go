package frontend

import (
	"io"
	"net/http"
	"testing"
)

// A body can be sent again until the round trip has ended, also when it was closed half-way.
// Afterwards nothing is left of it.
func TestAttach(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://worker/", nil)
	if err != nil {
		t.Fatal(err)
	}
	release := attach(req, []byte("the body"))
	if req.ContentLength != 8 {
		t.Errorf("length %d, want 8", req.ContentLength)
	}
	if _, err := io.ReadFull(req.Body, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	_ = req.Body.Close()
	again := func() string {
		body, err := req.GetBody()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := again(); got != "the body" {
		t.Errorf("the second attempt sends %q", got)
	}
	if rest, _ := io.ReadAll(req.Body); len(rest) > 0 {
		t.Errorf("the closed body has %q", rest)
	}
	release()
	if got := again(); got != "" {
		t.Errorf("after the round trip the request has %q", got)
	}
}
