package command

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// authority signs certificates in a directory.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	}, "ca")
	return a
}

// sign makes name.pem and name.key.
func (a *authority) sign(c *x509.Certificate, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) leaf(name string, use x509.ExtKeyUsage) {
	a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}, name)
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, data []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.path(name), data, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// guardedServer starts a server that ends with the test and returns its address.
func guardedServer(t *testing.T, change func(o *server.Options)) string {
	t.Helper()
	return sourcetest.StartServer(t, change).Addr().String()
}

// seedOf returns a new key's seed and public key.
func seedOf(t *testing.T, pair nkeys.KeyPair, err error) (seed, public string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return string(raw), public
}

// signClaims returns a JWT about a subject, as NATS signs them.
func signClaims(t *testing.T, issuer nkeys.KeyPair, subject string, claims map[string]any) string {
	t.Helper()
	id, err := issuer.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"jti": subject, "iat": time.Now().Unix(), "iss": id, "name": subject, "sub": subject, "nats": claims})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"typ":"JWT","alg":"ed25519-nkey"}`)) + "." + encode(body)
	signed, err := issuer.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + encode(signed)
}

// credsServer starts a server of an operator with one account and writes the
// credentials of one of the account's users.
func credsServer(t *testing.T, dir string) (address, creds string) {
	t.Helper()
	operator, err := nkeys.CreateOperator()
	_, operatorID := seedOf(t, operator, err)
	account, err := nkeys.CreateAccount()
	_, accountID := seedOf(t, account, err)
	user, err := nkeys.CreateUser()
	userSeed, userID := seedOf(t, user, err)
	accountJWT := signClaims(t, operator, accountID, map[string]any{"type": "account", "version": 2, "limits": map[string]any{
		"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1}})
	userJWT := signClaims(t, account, userID, map[string]any{"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1})
	file := []byte("-----BEGIN NATS USER JWT-----\n" + userJWT + "\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + userSeed + "\n------END USER NKEY SEED------\n")
	creds = filepath.Join(dir, "user.creds")
	if err := os.WriteFile(creds, file, 0o600); err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(accountID, accountJWT); err != nil {
		t.Fatal(err)
	}
	return guardedServer(t, func(o *server.Options) {
		o.TrustedKeys, o.AccountResolver = []string{operatorID}, resolver
	}), creds
}

// authCase is a server and who is let in.
type authCase struct {
	url  string
	good []natsauth.Settings
	bad  []natsauth.Settings
	// hangsUp is set when the server may not say why, so that the client tries on.
	hangsUp bool
}

func authCases(t *testing.T) map[string]authCase {
	dir := t.TempDir()
	seed, public := newUser(t)
	strangerSeed, _ := newUser(t)
	seedFile := filepath.Join(dir, "seed")
	if err := os.WriteFile(seedFile, []byte(seed+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	withCreds, creds := credsServer(t, dir)
	_, strangerCreds := credsServer(t, t.TempDir())
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	for _, a := range []*authority{ours, theirs} {
		a.leaf("server", x509.ExtKeyUsageServerAuth)
		a.leaf("client", x509.ExtKeyUsageClientAuth)
	}
	encrypted := func(verify bool) string {
		return guardedServer(t, func(o *server.Options) {
			var err error
			if o.TLSConfig, err = server.GenTLSConfig(&server.TLSConfigOpts{CertFile: ours.path("server.pem"),
				KeyFile: ours.path("server.key"), CaFile: ours.path("ca.pem"), Verify: verify}); err != nil {
				t.Fatal(err)
			}
			o.TLS, o.TLSVerify, o.TLSTimeout = true, verify, 5
		})
	}
	plain := encrypted(false)
	trusting := natsauth.Settings{CA: ours.path("ca.pem")}
	return map[string]authCase{
		"user": {"nats://" + guardedServer(t, func(o *server.Options) { o.Username, o.Password = "u", "right" }),
			[]natsauth.Settings{{User: "u", Password: "right"}},
			[]natsauth.Settings{{User: "u", Password: "hunter2"}, {Token: "hunter2"}, {}}, false},
		"token": {"nats://" + guardedServer(t, func(o *server.Options) { o.Authorization = "right" }),
			[]natsauth.Settings{{Token: "right"}}, []natsauth.Settings{{Token: "hunter2"}, {}}, false},
		"nkey": {"nats://" + guardedServer(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }),
			[]natsauth.Settings{{Seed: natsauth.Secret(seed)}, {SeedFile: seedFile}},
			[]natsauth.Settings{{Seed: natsauth.Secret(strangerSeed)}, {}}, false},
		"creds": {"nats://" + withCreds, []natsauth.Settings{{Creds: creds}}, []natsauth.Settings{{Creds: strangerCreds}, {}}, false},
		"tls": {"tls://" + plain, []natsauth.Settings{trusting, {Insecure: true}},
			[]natsauth.Settings{{}, {CA: theirs.path("ca.pem")}}, false},
		"tls by the server's wish":     {"nats://" + plain, []natsauth.Settings{trusting}, []natsauth.Settings{{}}, false},
		"no tls where it is asked for": {"nats://" + guardedServer(t, func(*server.Options) {}), nil, []natsauth.Settings{trusting}, false},
		"mtls": {"tls://" + encrypted(true),
			[]natsauth.Settings{{CA: ours.path("ca.pem"), Cert: ours.path("client.pem"), Key: ours.path("client.key")}},
			[]natsauth.Settings{{CA: ours.path("ca.pem"), Cert: theirs.path("client.pem"), Key: theirs.path("client.key")}}, true},
	}
}

// newUser returns the seed and the public key of a new user.
func newUser(t *testing.T) (seed, public string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	return seedOf(t, pair, err)
}

// TestEveryWayToLogIn: agents and routers are let in by every kind of server with
// what it wants, and say so, without the secret, when they are not.
func TestEveryWayToLogIn(t *testing.T) {
	connect := map[string]func(url string, s natsauth.Settings) (connected func() bool, closed func() error, err error){
		"publisher": func(url string, s natsauth.Settings) (func() bool, func() error, error) {
			n, err := nats.Connect(t.Context(), nats.Options{URL: url, Auth: s})
			if err != nil {
				return nil, nil, err
			}
			return n.Connected, n.Close, nil
		},
		"router": func(url string, s natsauth.Settings) (func() bool, func() error, error) {
			n, err := natssource.Connect(natssource.Options{URL: url, Auth: s})
			if err != nil {
				return nil, nil, err
			}
			return func() bool { return n.Stats().Connected }, n.Close, nil
		},
	}
	cases := authCases(t)
	for who, connect := range connect {
		for name, tc := range cases {
			t.Run(who+"/"+name, func(t *testing.T) {
				for _, s := range tc.good {
					connected, closed, err := connect(tc.url, s)
					if err != nil {
						t.Errorf("%+v: %v", s, err)
						continue
					}
					if !connected() {
						t.Errorf("%+v: not connected", s)
					}
					if err := closed(); err != nil {
						t.Error(err)
					}
				}
				for _, s := range tc.bad {
					connected, closed, err := connect(tc.url, s)
					// On a busy machine the login may time out, which is no refusal: the client tries on.
					for tries := 0; err == nil && !tc.hangsUp && !connected() && tries < 5; tries++ {
						if err := closed(); err != nil {
							t.Error(err)
						}
						connected, closed, err = connect(tc.url, s)
					}
					if err == nil {
						if !tc.hangsUp || connected() {
							t.Errorf("%+v was not refused", s)
						}
						if err := closed(); err != nil {
							t.Error(err)
						}
						continue
					}
					if strings.Contains(err.Error(), "hunter2") || !natsauth.Refused(err) {
						t.Errorf("%+v: %v", s, err)
					}
				}
			})
		}
	}
}

// TestRotatedCertificatesAreRead: a client certificate that is replaced on disk is
// the one that the next connection shows.
func TestRotatedCertificatesAreRead(t *testing.T) {
	a := newAuthority(t, "ours")
	a.leaf("client", x509.ExtKeyUsageClientAuth)
	s := natsauth.Settings{Cert: a.path("client.pem"), Key: a.path("client.key")}
	login, err := s.Login()
	if err != nil {
		t.Fatal(err)
	}
	var o natsgo.Options
	if err := login(&o); err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		pair, err := o.TLSCertCB()
		if err != nil {
			t.Fatal(err)
		}
		return string(pair.Certificate[0])
	}
	before := serial()
	a.leaf("client", x509.ExtKeyUsageClientAuth)
	if serial() == before {
		t.Error("the old certificate is shown")
	}
	if o.TLSConfig.MinVersion < tls.VersionTLS12 {
		t.Error("old TLS is spoken")
	}
}

// TestRouterNamesWhatIsWrongWithItsServer: without a server that a setting needs, and with
// contradictions, the router says which setting is wrong.
func TestRouterNamesWhatIsWrongWithItsServer(t *testing.T) {
	for _, name := range []string{"NATS_SERVER", "BLOCKYARD_NATS", "NATS_AUTH_TOKEN"} {
		t.Setenv(name, "")
	}
	for want, args := range map[string][]string{
		"--durable-kv-events: needs --nats":          {"router", "--durable-kv-events"},
		"--dynamo-endpoint: needs --nats":            {"router", "--dynamo-endpoint=dynamo.backend.generate"},
		"nats token: given together with nats user":  {"router", "--nats=nats://127.0.0.1:1", "--nats-user=u", "--nats-password=hunter2", "--nats-token=hunter2"},
		"nats creds: the URL has credentials":        {"router", "--nats=nats://u:hunter2@127.0.0.1:1", "--nats-creds=f"},
		"nats stream":                                {"router", "--nats=nats://127.0.0.1:1", "--durable-kv-events", "--nats-stream=a.b"},
		"router-snapshot-threshold":                  {"router", "--nats=nats://127.0.0.1:1", "--router-snapshot-threshold=-1"},
		"nats tls insecure: given together":          {"router", "--nats=tls://127.0.0.1:1", "--nats-tls-insecure", "--nats-tls-ca=f"},
		"nats url: server 1 of the list: want nats:": {"router", "--nats=redis://x:hunter2@127.0.0.1"},
	} {
		var out, errs strings.Builder
		if status := Product("").Run(t.Context(), args, &out, &errs); status == 0 {
			t.Errorf("%v: status 0", args)
		}
		if !strings.Contains(errs.String(), want) || strings.Contains(errs.String(), "hunter2") {
			t.Errorf("%v: %s, want %q", args, errs.String(), want)
		}
	}
}
