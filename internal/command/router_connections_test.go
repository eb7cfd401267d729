package command

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestConnectionLimits: every listener of a router keeps to the limits of
// connections. One too many closes an idle connection, at --ext-proc the new one.
func TestConnectionLimits(t *testing.T) {
	withoutSettings(t)
	indexer, selection := freePort(t), freePort(t)
	p := startProgram(t, "router", "--http=127.0.0.1:0", "--control=127.0.0.1:0", "--http-host=127.0.0.1", "--http-port=0",
		"--ext-proc=127.0.0.1:0", "--indexer-port="+indexer, "--selection-port="+selection, "--max-client-connections=2")
	for name, address := range map[string]string{
		"http": fmt.Sprint(p.ready["http"]), "control": fmt.Sprint(p.ready["control"]), "frontend": fmt.Sprint(p.ready["door"]),
		"indexer": "127.0.0.1:" + indexer, "selection": "127.0.0.1:" + selection,
	} {
		t.Run(name, func(t *testing.T) {
			idle, used := dial(t, address), dial(t, address)
			get(t, used, "/health")
			newest := dial(t, address)
			get(t, newest, "/health")
			if n, err := idle.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the longest idle connection: %d bytes, %v", n, err)
			}
			get(t, used, "/health")
			if name == "http" {
				if text := get(t, newest, "/metrics"); !strings.Contains(text, `blockyard_http_connections_closed_total{reason="idle"} 1`) {
					t.Error("/metrics does not count the closed connection")
				}
			}
		})
	}
	t.Run("ext-proc", func(t *testing.T) {
		address := fmt.Sprint(p.ready["ext_proc"])
		for range 2 { // the server's settings show that it serves
			if _, err := io.ReadFull(dial(t, address), make([]byte, 9)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := dial(t, address).Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("one gateway too many: %d bytes, %v", n, err)
		}
	})
}

// dial returns a connection to address that fails after a minute.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// get asks for a path on c and returns the answer's body.
func get(t *testing.T, c net.Conn, path string) string {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.Body.Close() != nil {
		t.Fatal(err)
	}
	return string(body)
}
