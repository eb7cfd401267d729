package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/router"
)

// TestServicePortsServeDynamosServices: an engine registers at each and is followed; without
// the flags nothing listens.
func TestServicePortsServeDynamosServices(t *testing.T) {
	withoutSettings(t)
	t.Setenv("NATS_SERVER", "")
	port, selection := freePort(t), freePort(t)
	c := settle(t, "--indexer-port", port, "--selection-port", selection)
	sources, err := c.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer sources.Close()
	r, err := router.New(c.options("", zap.NewNop()), sources.Source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	off := settle(t)
	if err := off.openServices(ctx, g, r, sources, nil, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	url := "http://127.0.0.1:" + port
	if _, err := http.Get(url + "/health"); err == nil { //nolint:bodyclose // there is no answer
		t.Error("a router without --indexer-port listens")
	}
	if err := c.openServices(ctx, g, r, sources, nil, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	for to, body := range map[string]string{
		url + "/register": `{"instance_id":7,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16}`,
		"http://127.0.0.1:" + selection + "/workers": `{"worker_id":8,"endpoint":"http://a","kv_events_endpoint":"tcp://127.0.0.1:1","block_size":16}`,
	} {
		answer, err := http.Post(to, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.Body.Close() != nil || answer.StatusCode != http.StatusCreated {
			t.Errorf("%s: %d %s %v", to, answer.StatusCode, text, err)
		}
	}
	if n := sources.engines.Counters().Engines; n != 2 {
		t.Errorf("%d engines are followed", n)
	}
	taken := settle(t, "--indexer-port", port)
	if err := taken.openServices(ctx, g, r, sources, nil, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "--indexer-port") {
		t.Errorf("a port that is in use: %v", err)
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// TestServicePortsOverTLS: both ports take the certificate of --service-tls-cert, and with a client CA refuse callers
// without one.
func TestServicePortsOverTLS(t *testing.T) {
	withoutSettings(t)
	ca := newAuthority(t, "ca")
	ca.leaf("server", x509.ExtKeyUsageServerAuth)
	ca.leaf("caller", x509.ExtKeyUsageClientAuth)
	at := func(name string) string { return filepath.Join(ca.dir, name) }
	indexer, selection := freePort(t), freePort(t)
	startProgram(t, "router", "--http=127.0.0.1:0", "--control="+t.TempDir()+"/c", "--indexer-port="+indexer, "--selection-port="+selection,
		"--service-tls-cert="+at("server.pem"), "--service-tls-key="+at("server.key"), "--service-tls-client-ca="+at("ca.pem"))
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	own, err := tls.LoadX509KeyPair(at("caller.pem"), at("caller.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{indexer, selection} {
		for _, c := range []struct {
			scheme       string
			certificates []tls.Certificate
			ok           bool
		}{{"https", []tls.Certificate{own}, true}, {"https", nil, false}, {"http", nil, false}} {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: c.certificates}}}
			answer, err := client.Get(c.scheme + "://127.0.0.1:" + port + "/health")
			if ok := err == nil && answer.StatusCode == http.StatusOK; ok != c.ok {
				t.Errorf("port %s by %s with %d certificates: %v, %v", port, c.scheme, len(c.certificates), answer, err)
			}
			if err == nil {
				answer.Body.Close()
			}
			client.CloseIdleConnections()
		}
	}
}

// freePort returns a TCP port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return fmt.Sprint(free.Addr().(*net.TCPAddr).Port)
}
