package command

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestControlOverTLS: operators reach an agent and a router over TLS, with the authority of SSL_CERT_FILE and a
// certificate of their own. Without one of the three they do not. A socket takes no certificate. What net/http has
// to say of failed handshakes is a line of the log.
func TestControlOverTLS(t *testing.T) {
	withoutSettings(t)
	ca := newAuthority(t, "ca")
	ca.sign(&x509.Certificate{SerialNumber: ca.cert.SerialNumber, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: ca.cert.NotAfter}, "server")
	ca.leaf("operator", x509.ExtKeyUsageClientAuth)
	at := func(name string) string { return filepath.Join(ca.dir, name) }
	files := []string{"--control-tls-cert=" + at("server.pem"), "--control-tls-key=" + at("server.key"), "--control-tls-client-ca=" + at("ca.pem")}
	dir, err := os.MkdirTemp("", "by") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, args := range map[string][]string{
		"agent":  {"agent", "--node=n", "--socket=" + dir + "/s", "--admin=127.0.0.1:0", "--host-dir=" + dir + "/h", "--host-size=16MiB", "--extent-size=1MiB"},
		"router": {"router", "--http=127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProgram(t, append(append(args, "--control=127.0.0.1:0"), files...)...)
			control := p.ready["control"].(string)
			ask := map[string][]string{"agent": {"admin", "status", "--control"}, "router": {"inspect"}}[name]
			own := []string{"--client-cert=" + at("operator.pem"), "--client-key=" + at("operator.key")}
			status := func(authority, address string, more ...string) (string, error) {
				c := exec.Command(p.cmd.Path, slices.Concat(ask, []string{address}, more)...)
				c.Env = append(os.Environ(), mainVariable+"=1", "SSL_CERT_FILE="+authority)
				out, err := c.CombinedOutput()
				return string(out), err
			}
			if out, err := status(at("ca.pem"), "https://"+control, own...); err != nil {
				t.Errorf("over TLS: %v: %s", err, out)
			}
			if out, err := status(at("none.pem"), "https://"+control, own...); err == nil || !strings.Contains(out, "certificate") {
				t.Errorf("without the authority: %v: %s", err, out)
			}
			if out, err := status(at("ca.pem"), "https://"+control); err == nil {
				t.Errorf("without a certificate: %v: %s", err, out)
			}
			if out, err := status(at("ca.pem"), "https://"+control, own[0]); err == nil || !strings.Contains(out, "--client-cert and --client-key: want both or none") {
				t.Errorf("without a key: %v: %s", err, out)
			}
			if out, err := status(at("ca.pem"), control); err == nil {
				t.Errorf("without TLS: %s", out)
			}
			p.awaitLine(0, "TLS handshake error")
			for line := range strings.Lines(p.log()) {
				if !json.Valid([]byte(line)) {
					t.Errorf("a line that is not of the log: %s", line)
				}
			}
			var out bytes.Buffer
			if code := Product("").Run(t.Context(), append(append(args, "--control="+dir+"/c"), files...), &out, &out); code == 0 || !strings.Contains(out.String(), "TLS needs HOST:PORT") {
				t.Errorf("a socket: status %d: %s", code, out.String())
			}
		})
	}
}
