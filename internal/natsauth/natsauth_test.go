package natsauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// environment is variables by name.
type environment map[string]string

func (e environment) get(name string) string { return e[name] }

// TestResolvePrecedence: what is given comes before the URL's credentials, these
// before Dynamo's variables in Dynamo's order, and user/user is for servers that
// NATS_SERVER names.
func TestResolvePrecedence(t *testing.T) {
	all := environment{"NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p", "NATS_AUTH_TOKEN": "t",
		"NATS_AUTH_NKEY": "n", "NATS_AUTH_CREDENTIALS_FILE": "c"}
	without := func(names ...string) environment {
		e := environment{}
		for k, v := range all {
			e[k] = v
		}
		for _, n := range names {
			delete(e, n)
		}
		return e
	}
	for _, tc := range []struct {
		name  string
		url   string
		given Settings
		env   environment
		want  Settings
		at    string
	}{
		{"given wins", "nats://a", Settings{Token: "mine"}, all, Settings{Token: "mine"}, "nats://a"},
		{"the URL's win", "nats://x:y@a", Settings{}, all, Settings{}, "nats://x:y@a"},
		{"user and password", "nats://a", Settings{}, all, Settings{User: "u", Password: "p"}, "nats://a"},
		{"a user without password is none", "nats://a", Settings{}, without("NATS_AUTH_PASSWORD"), Settings{Token: "t"}, "nats://a"},
		{"then the token", "nats://a", Settings{}, without("NATS_AUTH_USERNAME"), Settings{Token: "t"}, "nats://a"},
		{"then the nkey", "nats://a", Settings{}, without("NATS_AUTH_USERNAME", "NATS_AUTH_TOKEN"), Settings{Seed: "n"}, "nats://a"},
		{"then the file", "nats://a", Settings{}, environment{"NATS_AUTH_CREDENTIALS_FILE": "c"}, Settings{Creds: "c"}, "nats://a"},
		{"nobody said anything", "nats://a", Settings{}, environment{"NATS_SERVER": "nats://b"}, Settings{}, "nats://a"},
		{"NATS_SERVER", "", Settings{}, environment{"NATS_SERVER": "nats://b"}, Settings{User: "user", Password: "user"}, "nats://b"},
		{"NATS_SERVER with credentials", "", Settings{}, environment{"NATS_SERVER": "nats://k@b"}, Settings{}, "nats://k@b"},
		{"no server", "", Settings{}, environment{}, Settings{}, ""},
		{"TLS", "tls://a", Settings{}, environment{"NATS_TLS_CA_CERT_PATH": "ca"}, Settings{CA: "ca"}, "tls://a"},
		{"insecure", "tls://a", Settings{}, environment{"NATS_TLS_CA_CERT_PATH": "ca", "NATS_TLS_INSECURE": "True"}, Settings{Insecure: true}, "tls://a"},
		{"no TLS", "nats://a", Settings{}, environment{"NATS_TLS_CA_CERT_PATH": "ca", "NATS_TLS_INSECURE": "1"}, Settings{}, "nats://a"},
		{"TLS for one of the servers", "nats://a, tls://b", Settings{}, environment{"NATS_TLS_CA_CERT_PATH": "ca"}, Settings{CA: "ca"}, "nats://a, tls://b"},
		{"variables without a server", "", Settings{}, all, Settings{}, ""},
		{"given TLS wins", "tls://a", Settings{CA: "mine"}, environment{"NATS_TLS_INSECURE": "1"}, Settings{CA: "mine"}, "tls://a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at, got, err := Resolve(tc.url, tc.given, tc.env.get)
			if err != nil || got != tc.want || at != tc.at {
				t.Errorf("%s with %#v, %v; want %s with %#v", at, got, err, tc.at, tc.want)
			}
		})
	}
	_, _, err := Resolve("tls://a", Settings{}, environment{"NATS_TLS_INSECURE": "maybe"}.get)
	if err == nil || !strings.Contains(err.Error(), "NATS_TLS_INSECURE") {
		t.Errorf("NATS_TLS_INSECURE=maybe: %v", err)
	}
}

func TestSettingsThatContradictAreNamed(t *testing.T) {
	for field, s := range map[string]Settings{
		"nats token":        {User: "u", Password: "hunter2", Token: "hunter2"},
		"nats creds":        {Seed: "hunter2", Creds: "f"},
		"nats password":     {User: "u"},
		"nats user":         {Password: "hunter2"},
		"nats nkey":         {Seed: "hunter2", SeedFile: "f"},
		"nats tls key":      {Cert: "c"},
		"nats tls cert":     {Key: "k"},
		"nats tls insecure": {Insecure: true, CA: "ca"},
	} {
		if err := s.Validate("nats://a"); err == nil || !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", field, err)
		}
	}
	s := Settings{Token: "hunter2"}
	if err := s.Validate("nats://x:y@a"); err == nil || !strings.Contains(err.Error(), "nats token") {
		t.Errorf("credentials twice: %v", err)
	}
	if err := (&Settings{}).Validate("nats://x:y@a"); err != nil {
		t.Error(err)
	}
}

// TestSecretsAreNotShown: no way of printing settings shows what is secret.
func TestSecretsAreNotShown(t *testing.T) {
	s := Settings{User: "u", Password: "hunter2", Token: "hunter2", Seed: "hunter2"}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), string(text)} {
		if strings.Contains(shown, "hunter2") || !strings.Contains(shown, "…") {
			t.Errorf("shown as %s", shown)
		}
	}
}

func newSeed(t *testing.T, kind func() (nkeys.KeyPair, error)) (seed, public string) {
	t.Helper()
	pair, err := kind()
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

// TestSeedSigns: a seed, given or in a file, signs what its public key verifies,
// and the file is read again each time.
func TestSeedSigns(t *testing.T) {
	seed, public := newSeed(t, nkeys.CreateUser)
	file := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(file, []byte("# mine\n"+seed+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Settings{"seed": {Seed: Secret(seed)}, "file": {SeedFile: file}} {
		login, err := s.Login()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var o nats.Options
		if err := login(&o); err != nil || o.Nkey != public {
			t.Fatalf("%s: public key %q, %v; want %q", name, o.Nkey, err, public)
		}
		for range 2 {
			signed, err := o.SignatureCB([]byte("nonce"))
			key, _ := nkeys.FromPublicKey(public)
			if err != nil || key.Verify([]byte("nonce"), signed) != nil {
				t.Errorf("%s: signature does not verify, %v", name, err)
			}
		}
		if name != "file" {
			continue
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if _, err := o.SignatureCB([]byte("nonce")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without its file: %v", err)
		}
	}
}

func TestFilesThatCannotBeUsedAreNamed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	account, _ := newSeed(t, nkeys.CreateAccount)
	user, _ := newSeed(t, nkeys.CreateUser)
	for name, tc := range map[string]struct {
		s     Settings
		field string
	}{
		"no seed":           {Settings{Seed: "hunter2"}, "nats nkey"},
		"no seed file":      {Settings{SeedFile: filepath.Join(dir, "none")}, "nats nkey"},
		"account's seed":    {Settings{Seed: Secret(account)}, "nats nkey"},
		"creds without JWT": {Settings{Creds: write("creds", user)}, "nats creds"},
		"no creds":          {Settings{Creds: filepath.Join(dir, "none")}, "nats creds"},
		"no CA":             {Settings{CA: filepath.Join(dir, "none")}, "nats tls ca"},
		"CA not PEM":        {Settings{CA: write("ca", "hunter2")}, "nats tls ca"},
		"huge file":         {Settings{CA: write("huge", strings.Repeat("x", maxFile+1))}, "nats tls ca"},
		"no certificate":    {Settings{Cert: filepath.Join(dir, "none"), Key: filepath.Join(dir, "none")}, "nats tls cert"},
	} {
		_, err := tc.s.Login()
		if err == nil || !strings.Contains(err.Error(), tc.field) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), user) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, err := range []error{nats.ErrAuthorization, fmt.Errorf("x: %w", nats.ErrSecureConnRequired), &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}} {
		if !Refused(err) {
			t.Errorf("%v is not a refusal", err)
		}
	}
	for _, err := range []error{nil, nats.ErrNoServers, &net.OpError{Op: "dial", Err: errors.New("refused")}} {
		if Refused(err) {
			t.Errorf("%v is a refusal", err)
		}
	}
}
