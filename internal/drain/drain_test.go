package drain

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// serve serves h until the returned end is called. Requests get no time.
func serve(t *testing.T, h http.HandlerFunc, stopping error) (url string, end func() error) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}, l, 0, stopping)
	}()
	return "http://" + l.Addr().String(), func() error { cancel(); return <-served }
}

func TestRequestsThatRunAtTheEndLearnWhyAndAnswer(t *testing.T) {
	stopping, began := errors.New("stopping"), make(chan struct{})
	url, end := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		_, _ = io.WriteString(w, context.Cause(r.Context()).Error())
	}, stopping)
	answer := make(chan string, 1)
	go func() {
		defer close(answer)
		resp, err := http.Get(url)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		answer <- string(text)
	}()
	<-began
	if err := end(); err != nil {
		t.Error(err)
	}
	if got := <-answer; got != "stopping" {
		t.Errorf("the answer is %q, want the cause of the end", got)
	}
}

func TestRequestThatDoesNotEndIsCutOff(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	url, end := serve(t, func(http.ResponseWriter, *http.Request) { close(began); <-release }, errors.New("stopping"))
	failed := make(chan error, 1)
	go func() {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-began
	if err := end(); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("a request whose handler never ends was answered")
	}
	close(release)
}

func TestListenerThatFailsIsAnError(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), &http.Server{ReadHeaderTimeout: time.Minute}, l, 0, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the error is %v, want that of the closed listener", err)
	}
}
