package servertls_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/servertls"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.key, a.pem = key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// pair returns a certificate for 127.0.0.1 and its key in PEM.
func (a *authority) pair(name string) (cert, key []byte) {
	a.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert, &own.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// serve answers "ok" behind the files and returns the URL.
func serve(t *testing.T, f servertls.Files, logger *zap.Logger) string {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Listen(plain, logger)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
		ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "https://" + plain.Addr().String()
}

// ask sends one request on a new connection.
func (a *authority) ask(url string, http2 bool, certificates ...tls.Certificate) (protocol, server string, err error) {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	transport := &http.Transport{ForceAttemptHTTP2: http2, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Get(url)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close() //nolint:errcheck // not read
	return resp.Proto, resp.TLS.PeerCertificates[0].Subject.CommonName, nil
}

// HTTP/1.1 and HTTP/2 are served. A new certificate is taken within a second. A bad one
// keeps the one of before, and is logged once.
func TestReload(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	f := servertls.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	cert, key := a.pair("one")
	write(t, f.Cert, cert)
	write(t, f.Key, key)
	core, logs := observer.New(zap.ErrorLevel)
	url := serve(t, f, zap.New(core))
	for http2, want := range map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"} {
		if got, name, err := a.ask(url, http2); err != nil || got != want || name != "one" {
			t.Errorf("%s from %s, %v; want %s from one", got, name, err, want)
		}
	}
	await := func(want string, logged int) {
		t.Helper()
		for began := time.Now(); ; runtime.Gosched() {
			_, name, err := a.ask(url, false)
			if err != nil {
				t.Fatal(err)
			}
			if name == want && logs.Len() == logged {
				return
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("the certificate is %s with %d logged errors, want %s with %d", name, logs.Len(), want, logged)
			}
		}
	}
	cert, key = a.pair("two")
	write(t, f.Cert, cert) // it does not go with the key of before
	await("one", 1)
	write(t, f.Key, key)
	await("two", 1)
}

// Clients need a certificate of the authority.
func TestClientCertificate(t *testing.T) {
	a, other, dir := newAuthority(t), newAuthority(t), t.TempDir()
	f := servertls.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca")}
	cert, key := a.pair("server")
	write(t, f.Cert, cert)
	write(t, f.Key, key)
	write(t, f.ClientCA, a.pem)
	url := serve(t, f, zap.NewNop())
	of := func(a *authority) tls.Certificate {
		pair, err := tls.X509KeyPair(a.pair("client"))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	if _, _, err := a.ask(url, true, of(a)); err != nil {
		t.Errorf("a client with a certificate: %v", err)
	}
	if _, _, err := a.ask(url, true, of(other)); err == nil {
		t.Error("a client with a certificate of another authority got in")
	}
	if _, _, err := a.ask(url, false); err == nil {
		t.Error("a client without a certificate got in")
	}
}

func TestErrorsNameTheFlag(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.pair("one")
	at := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		write(t, path, content)
		return path
	}
	good := servertls.Files{Cert: at("cert", cert), Key: at("key", key)}
	empty := at("empty", nil)
	for want, f := range map[string]servertls.Files{
		"tls-cert and tls-key: want both": {Cert: good.Cert},
		"tls-client-ca: needs":            {ClientCA: good.Cert},
		"tls-cert " + empty:               {Cert: empty, Key: good.Key},
		"tls-client-ca " + empty:          {Cert: good.Cert, Key: good.Key, ClientCA: empty},
		"no such file":                    {Cert: good.Cert, Key: dir + "/none"},
	} {
		if _, err := f.Listen(nil, zap.NewNop()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", f, err, want)
		}
	}
	if l, err := (servertls.Files{}).Listen(nil, nil); l != nil || err != nil {
		t.Errorf("without files: %v, %v", l, err)
	}
}

// A handshake that waits holds up no other, and Close ends it. A client that speaks no TLS is told, and logged.
func TestHandshakesWaitForNobody(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	f := servertls.Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	cert, key := a.pair("one")
	write(t, f.Cert, cert)
	write(t, f.Key, key)
	core, logs := observer.New(zap.InfoLevel)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Listen(plain, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	var silent []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	client := make(chan error, 1)
	go func() {
		c, err := tls.Dial("tcp", plain.Addr().String(), &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}})
		if err == nil {
			err = c.Close()
		}
		client <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if state := c.(*tls.Conn).ConnectionState(); !state.HandshakeComplete || state.NegotiatedProtocol != "h2" {
		t.Errorf("accepted with the protocol %q, handshake complete %t", state.NegotiatedProtocol, state.HandshakeComplete)
	}
	if err := <-client; err != nil {
		t.Error(err)
	}
	_ = c.Close()
	if _, err := io.WriteString(silent[0], "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(silent[0]); err != nil || !strings.Contains(string(text), "speaks HTTPS") {
		t.Errorf("a client without TLS reads %q, %v", text, err)
	}
	if n := logs.FilterMessage("TLS handshake error").Len(); n != 1 {
		t.Errorf("%d handshakes are logged, want 1", n)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if n, err := silent[1].Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("after Close a waiting client reads %d bytes, %v", n, err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
}
