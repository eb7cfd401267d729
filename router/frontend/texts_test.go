package frontend_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/connlimit"
	"github.com/blockyard-ai/blockyard/internal/servertls"
	"github.com/blockyard-ai/blockyard/router/frontend"
)

// Requests that net/http refuses before the door sees them get OpenAI's errors too, also over TLS.
func TestUnreadableRequests(t *testing.T) {
	b := newBench(t, frontend.Options{}, newServer(t, 7, answers(200, `{}`)))
	t.Run("plain", func(t *testing.T) {
		address := strings.TrimPrefix(serveDoor(t, b), "http://")
		sendUnreadable(t, func() (net.Conn, error) { return net.Dial("tcp", address) })
	})
	t.Run("tls", func(t *testing.T) {
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		files, roots := certificate(t)
		l, err := files.Listen(plain, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		serveOn(t, b, l)
		config := &tls.Config{RootCAs: roots}
		sendUnreadable(t, func() (net.Conn, error) { return tls.Dial("tcp", l.Addr().String(), config) })
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("https://" + l.Addr().String() + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
			t.Errorf("%s, status %d; want HTTP/2", resp.Proto, resp.StatusCode)
		}
	})
}

// certificate returns the files of a certificate for 127.0.0.1, which is its own authority.
func certificate(t *testing.T) (servertls.Files, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := servertls.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	for path, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return files, roots
}

// sendUnreadable sends requests that net/http refuses, each on a connection of dial.
func sendUnreadable(t *testing.T, dial func() (net.Conn, error)) {
	t.Helper()
	for request, want := range map[string]int{
		"nonsense\r\n\r\n":                                                     400,
		"GET /v1/models HTTP/1.1\r\n\r\n":                                      400,
		"GET /v1/models HTTP/7.1\r\nHost: a\r\n\r\n":                           505,
		"GET /v1/models HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: odd\r\n\r\n": 501,
		"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":      200,
	} {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%q: %v", request, err)
		}
		body, err := io.ReadAll(resp.Body)
		if _ = c.Close(); err != nil || resp.StatusCode != want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: status %d, want %d; %s %v", request, resp.StatusCode, want, resp.Header, err)
		}
		if want != 200 {
			errorOf(t, string(body))
		}
	}
}

// The limits of connections see which connections of the door are busy.
func TestBusyConnectionsStay(t *testing.T) {
	h := &holds{end: make(chan struct{})}
	b := newBench(t, frontend.Options{}, newServer(t, 7, h.answer))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := serveOn(t, b, connlimit.Listen(plain, connlimit.Limits{All: 1}))
	held := make(chan error, 1)
	go func() {
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1]}`))
		if err == nil {
			err = resp.Body.Close()
		}
		held <- err
	}()
	await(t, &h.all, 1)
	c, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("one connection too many got %d bytes", n)
	}
	_ = c.Close()
	close(h.end)
	if err := <-held; err != nil {
		t.Errorf("the busy connection: %v", err)
	}
}
