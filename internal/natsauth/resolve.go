package natsauth

import (
	"fmt"
	"slices"
	"strings"
)

// Variables of Dynamo.
const (
	envServer   = "NATS_SERVER"
	envUser     = "NATS_AUTH_USERNAME"
	envPassword = "NATS_AUTH_PASSWORD"
	envToken    = "NATS_AUTH_TOKEN"
	envNkey     = "NATS_AUTH_NKEY"
	envCreds    = "NATS_AUTH_CREDENTIALS_FILE"
	envCA       = "NATS_TLS_CA_CERT_PATH"
	envInsecure = "NATS_TLS_INSECURE"
)

// defaultUser is the user and the password that Dynamo logs in with when it is
// told nothing.
const defaultUser = "user"

// Resolve is the server to connect to and how. url and s are what Blockyard's
// own flags and variables say; get returns a variable of the environment, empty
// when it is not set.
//
// A url that is empty is taken from NATS_SERVER; when that is empty too, none of the
// other variables means anything. The way to log in is the first
// of: that of s; what the URL has; NATS_AUTH_USERNAME with NATS_AUTH_PASSWORD;
// NATS_AUTH_TOKEN; NATS_AUTH_NKEY, a seed; NATS_AUTH_CREDENTIALS_FILE. When there
// is none, the user "user" with the password "user" log in, as Dynamo's do, but
// only to a server that NATS_SERVER named: a server that Blockyard's own setting
// names is told no name that nobody gave. Without a CA and without Insecure in s,
// NATS_TLS_CA_CERT_PATH and NATS_TLS_INSECURE hold for servers with tls://; where the
// URL says nats://, they do not turn encryption on.
//
// The error names a variable whose value is wrong.
func Resolve(url string, s Settings, get func(name string) string) (string, Settings, error) {
	dynamo := url == "" && get(envServer) != ""
	if dynamo {
		url = get(envServer)
	}
	if url == "" {
		return "", s, nil
	}
	if !s.logsIn() && !hasCredentials(url) {
		switch {
		case get(envUser) != "" && get(envPassword) != "":
			s.User, s.Password = get(envUser), Secret(get(envPassword))
		case get(envToken) != "":
			s.Token = Secret(get(envToken))
		case get(envNkey) != "":
			s.Seed = Secret(get(envNkey))
		case get(envCreds) != "":
			s.Creds = get(envCreds)
		case dynamo:
			s.User, s.Password = defaultUser, defaultUser
		}
	}
	if s.CA == "" && !s.Insecure && asksTLS(url) {
		insecure, err := truth(envInsecure, get(envInsecure))
		if err != nil {
			return "", Settings{}, err
		}
		if s.Insecure = insecure; !insecure {
			s.CA = get(envCA)
		}
	}
	return url, s, nil
}

// asksTLS reports whether one of the URLs asks for an encrypted connection.
func asksTLS(urls string) bool {
	return slices.ContainsFunc(strings.Split(urls, ","), func(u string) bool {
		return strings.HasPrefix(strings.TrimSpace(u), "tls://")
	})
}

// truth reads a variable that is a yes or a no.
func truth(name, value string) (bool, error) {
	v := strings.ToLower(strings.TrimSpace(value))
	switch {
	case slices.Contains([]string{"1", "true", "yes", "on"}, v):
		return true, nil
	case slices.Contains([]string{"", "0", "false", "no", "off"}, v):
		return false, nil
	}
	return false, fmt.Errorf("%s: %.32q, want true or false", name, value)
}
