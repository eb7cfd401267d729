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

// Secret is text that is not to be shown.
type Secret string

// String is what is shown instead.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "…"
}

// GoString is what is shown instead.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText is what is shown instead.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Settings are how to log in and whom to trust. The zero value logs in with what
// the URL has, if anything, and trusts the system's certificate authorities.
type Settings struct {
	// User and Password, Token, Seed or SeedFile, and Creds are four ways to log
	// in; at most one of them is given.
	User     string
	Password Secret
	Token    Secret
	// Seed is a user's nkey seed, SeedFile a file with one.
	Seed     Secret
	SeedFile string
	// Creds is a file with a user's JWT and seed, as nsc writes it.
	Creds string

	// CA is a file of PEM certificates that the server's must descend from.
	CA string
	// Cert and Key are PEM files that the client shows; both or none.
	Cert, Key string
	// Insecure takes any server certificate. What travels is then encrypted and
	// may be read by whoever sits in between.
	Insecure bool
}

// method is one way to log in.
type method struct {
	name  string
	given bool
}

func (s *Settings) methods() []method {
	return []method{
		{"user", s.User != "" || s.Password != ""},
		{"token", s.Token != ""},
		{"nkey", s.Seed != "" || s.SeedFile != ""},
		{"creds", s.Creds != ""},
	}
}

// logsIn reports whether a way to log in is given.
func (s *Settings) logsIn() bool {
	for _, m := range s.methods() {
		if m.given {
			return true
		}
	}
	return false
}

// TLS reports whether the settings ask for an encrypted connection, whatever the
// scheme of the URL.
func (s *Settings) TLS() bool { return s.CA != "" || s.Cert != "" || s.Insecure }

// Validate reports what is missing or given twice, with the name of the field.
// urls are the servers that the settings are for. No file is read.
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

// CheckServers checks a list of NATS servers, with commas between them, such as
// nats://user:password@host:4222 or tls://host. What passes is understood by the
// NATS client, whose own errors show what they do not understand. The error of
// CheckServers shows nothing of a URL, since any part of it may be a password.
func CheckServers(urls string) error {
	for i, s := range strings.Split(urls, ",") {
		if why := badServer(strings.TrimSpace(s)); why != "" {
			return fmt.Errorf("url: server %d of the list: %s", i+1, why)
		}
	}
	return nil
}

// badServer says what is wrong with a server's URL, empty for nothing.
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
