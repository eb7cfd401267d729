package envoy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificates writes an authority's certificate, authority.pem, and name.pem with name.key for
// some DNS names.
func certificates(t *testing.T, dir string, names map[string]string) {
	t.Helper()
	write := func(file, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	authority, signer := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, key()
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &signer.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	write("authority.pem", "CERTIFICATE", der)
	for name, dns := range names {
		own := key()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
			DNSNames: []string{dns}, NotAfter: time.Now().Add(time.Hour)}, authority, &own.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", "CERTIFICATE", der)
		if der, err = x509.MarshalECPrivateKey(own); err != nil {
			t.Fatal(err)
		}
		write(name+".key", "EC PRIVATE KEY", der)
	}
}

// Envoy and the router speak TLS and check the certificates of one another.
func TestEnvoySpeaksTLS(t *testing.T) {
	for name, c := range map[string]struct {
		router, gateways string // the name in the router's certificate, the authority of gateways
		status           int
	}{
		"both are trusted":                 {"router.example", "", http.StatusOK},
		"Envoy expects another name":       {"other.example", "", http.StatusServiceUnavailable},
		"the router has another authority": {"router.example", "other", http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			certificates(t, dir, map[string]string{"router": c.router, "envoy": "envoy.example"})
			gateways := filepath.Join(dir, "authority.pem")
			if c.gateways != "" {
				other := t.TempDir()
				certificates(t, other, nil)
				gateways = filepath.Join(other, "authority.pem")
			}
			b := newBed(t, "--ext-proc-tls-cert="+dir+"/router.pem", "--ext-proc-tls-key="+dir+"/router.key", "--ext-proc-tls-client-ca="+gateways)
			socket := strings.ReplaceAll(documented(t, encrypted), "filename: ", "filename: "+dir+"/")
			b.startEnvoy(replace(t, documented(t, complete), "    - name: blockyard\n", "    - name: blockyard\n"+socket))
			if a := b.ask(completion(prompt(1, 64))); a.status != c.status {
				t.Errorf("status %d, want %d: %s", a.status, c.status, a.body)
			}
			b.idle()
		})
	}
}
