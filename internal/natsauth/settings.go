package natsauth

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Secret is text that must not be shown.
type Secret string

// String returns the text to show instead.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "…"
}

// GoString returns the text to show instead.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText returns the text to show instead.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Settings say how to log in and which certificates to trust. The zero value logs in with
// the URL's credentials, if any, and trusts the system's certificate authorities.
type Settings struct {
	// User and Password, Token, Seed or SeedFile, and Creds are four ways to log in. At
	// most one is given.
	User     string
	Password Secret
	Token    Secret
	// Seed is a user's nkey seed, SeedFile a file with one.
	Seed     Secret
	SeedFile string
	// Creds is a file with a user's JWT and seed, as nsc writes it.
	Creds string

	// CA is a PEM file of the authorities for the server's certificate.
	CA string
	// Cert and Key are PEM files that the client shows; both or none.
	Cert, Key string
	// Insecure accepts any server certificate. The connection is then encrypted, but
	// anybody in between can read it.
	Insecure bool
}

// method is one way to log in.
type method struct {
	name  string
	given bool
}

// methods returns the ways to log in, each with whether the settings give it.
func (s *Settings) methods() []method {
	return []method{
		{"user", s.User != "" || s.Password != ""},
		{"token", s.Token != ""},
		{"nkey", s.Seed != "" || s.SeedFile != ""},
		{"creds", s.Creds != ""},
	}
}

// logsIn reports whether the settings give any way to log in.
func (s *Settings) logsIn() bool {
	for _, m := range s.methods() {
		if m.given {
			return true
		}
	}
	return false
}

// TLS reports whether the settings ask for an encrypted connection. Then the scheme of the
// URL does not matter.
func (s *Settings) TLS() bool { return s.CA != "" || s.Cert != "" || s.Insecure }

// Validate returns an error for settings that contradict one another or lack a partner, such as a
// certificate without its key. urls are the servers, which may have credentials too. Validate
// reads no file.
func (s *Settings) Validate(urls string) error {
	used := ""
	for _, m := range s.methods() {
		if !m.given {
			continue
		}
		if used != "" {
			return fmt.Errorf("nats %s: given together with nats %s; want one way to log in", m.name, used)
		}
		used = m.name
	}
	switch {
	case used != "" && hasCredentials(urls):
		return fmt.Errorf("nats %s: the URL has credentials too; want one of the two", used)
	case s.User == "" && s.Password != "":
		return errors.New("nats user: must not be empty with a password")
	case s.User != "" && s.Password == "":
		return errors.New("nats password: must not be empty with a user")
	case s.Seed != "" && s.SeedFile != "":
		return errors.New("nats nkey: given as seed and as file; want one of the two")
	case s.Cert != "" && s.Key == "":
		return errors.New("nats tls key: must not be empty with a client certificate")
	case s.Cert == "" && s.Key != "":
		return errors.New("nats tls cert: must not be empty with a key")
	case s.Insecure && s.CA != "":
		return errors.New("nats tls insecure: given together with a certificate authority, which it would not ask")
	}
	return nil
}

// hasCredentials reports whether one of the URLs has a user or a token in it.
func hasCredentials(urls string) bool { return strings.Contains(urls, "@") }

var hostName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$`)

// CheckServers checks a list of NATS servers with commas between them, such as
// nats://user:password@host:4222 or tls://host. The error shows nothing of a URL, because
// any part of it may be a password. The errors of the NATS library show the URL; it accepts
// every list that passes here.
func CheckServers(urls string) error {
	for i, s := range strings.Split(urls, ",") {
		if why := badServer(strings.TrimSpace(s)); why != "" {
			return fmt.Errorf("url: server %d of the list: %s", i+1, why)
		}
	}
	return nil
}

// badServer returns why s is not the URL of a NATS server, without showing any of it; empty for a
// good URL.
func badServer(s string) string {
	const form = "want nats:// or tls://, and then [user:password@]host[:port]"
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return form + "; bytes that URLs give a meaning stand in user and password as % and two hexadecimal digits"
	case u.Scheme != "nats" && u.Scheme != "tls", strings.Trim(u.Path, "/") != "", u.Opaque != "",
		u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return form
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if strings.HasSuffix(u.Host, ":") || u.Port() != "" && (err != nil || port == 0) {
		return "port: want 1..65535"
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && !hostName.MatchString(u.Hostname()) {
		return "host: want a name or an IP address, IPv6 in brackets"
	}
	return ""
}
