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

// defaultUser is Dynamo's default user and its password.
const defaultUser = "user"

// Resolve returns the server to connect to and the settings to log in with. url and s come
// from Blockyard's own flags and variables. get returns an environment variable, empty
// when it is not set. The error names a variable with a wrong value.
//
// An empty url is taken from NATS_SERVER. Without either, the other variables mean
// nothing. The login is the first of:
//
//   - the login of s, or the credentials in url
//   - NATS_AUTH_USERNAME with NATS_AUTH_PASSWORD
//   - NATS_AUTH_TOKEN
//   - NATS_AUTH_NKEY, a seed
//   - NATS_AUTH_CREDENTIALS_FILE
//   - "user" with the password "user", as in Dynamo, for a server that NATS_SERVER names
//
// A tls:// server without CA and Insecure in s gets NATS_TLS_CA_CERT_PATH or
// NATS_TLS_INSECURE. These variables do not encrypt the connection to a nats:// server.
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

// truth returns the boolean that value, the text of the variable name, means: 1, true, yes or on,
// or one of their opposites, in any case. Empty is false.
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
