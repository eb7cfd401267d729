package natsauth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// maxFile bounds a file with a seed, credentials or certificates.
const maxFile = 1 << 20

// Connect returns a connection to the first of the servers in urls that answers. When none
// answers in time, Connect calls away with the reason and returns a connection that tries in the
// background for ever. A lost connection is made again for ever too. The error is for bad
// options, or says that client and server refuse one another: see Refused. login is the result of
// Settings.Login.
func Connect(urls string, login nats.Option, away func(error), options ...nats.Option) (*nats.Conn, error) {
	// The first dial waits for the result, so that a refusal is reported. The second does not.
	dial := func(wait nats.Option) (*nats.Conn, error) {
		return nats.Connect(urls, append([]nats.Option{
			login, wait, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		}, options...)...)
	}
	conn, err := dial(nats.RetryOnFailedConnect(false))
	if err == nil || Refused(err) {
		return conn, err
	}
	away(err)
	return dial(nats.RetryOnFailedConnect(true))
}

// Login reads the files that the settings name and returns the option that logs in.
// The error names the setting that cannot be used. The files are read again at each
// connection.
func (s *Settings) Login() (nats.Option, error) {
	login := nats.Options{User: s.User, Password: string(s.Password), Token: string(s.Token)}
	var err error
	switch {
	case s.Seed != "":
		err = setSeed(&login, "nats nkey", func() ([]byte, error) { return []byte(s.Seed), nil })
	case s.SeedFile != "":
		err = setSeed(&login, "nats nkey", func() ([]byte, error) { return readFile(s.SeedFile) })
	case s.Creds != "":
		err = setCreds(&login, s.Creds)
	}
	if err == nil {
		err = s.setTLS(&login)
	}
	if err != nil {
		return nil, err
	}
	return func(o *nats.Options) error {
		o.User, o.Password, o.Token = login.User, login.Password, login.Token
		o.Nkey, o.SignatureCB, o.UserJWT = login.Nkey, login.SignatureCB, login.UserJWT
		o.TLSConfig, o.TLSCertCB, o.RootCAsCB = login.TLSConfig, login.TLSCertCB, login.RootCAsCB
		o.Secure = login.TLSConfig != nil // otherwise the URL's scheme says whether to encrypt
		return nil
	}, nil
}

// setSeed sets in o how to log in with an nkey seed: the public key names the user, and the seed
// signs the server's nonce. read returns the seed; it is called at each connection, so that the
// seed does not stay in memory. field names the setting in errors.
func setSeed(o *nats.Options, field string, read func() ([]byte, error)) error {
	withPair := func(use func(nkeys.KeyPair) error) error {
		text, err := read()
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		defer clear(text)
		pair, err := nkeys.ParseDecoratedNKey(bytes.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("%s: not an nkey seed", field)
		}
		defer pair.Wipe()
		return use(pair)
	}
	o.SignatureCB = func(nonce []byte) (signed []byte, err error) {
		err = withPair(func(pair nkeys.KeyPair) error {
			signed, err = pair.Sign(nonce)
			return err
		})
		return signed, err
	}
	return withPair(func(pair nkeys.KeyPair) error {
		public, err := pair.PublicKey()
		if err != nil || !nkeys.IsValidPublicUserKey(public) {
			return fmt.Errorf("%s: the seed is not a user's", field)
		}
		o.Nkey = public
		return nil
	})
}

// setCreds sets in o how to log in with a credentials file, which has a JWT and its seed. It
// reads the file once to check it; later connections read it again.
func setCreds(o *nats.Options, file string) error {
	const field = "nats creds"
	if err := setSeed(o, field, func() ([]byte, error) { return readFile(file) }); err != nil {
		return err
	}
	o.Nkey = "" // the server takes the key from the JWT
	o.UserJWT = func() (string, error) {
		text, err := readFile(file)
		if err != nil {
			return "", fmt.Errorf("%s: %w", field, err)
		}
		defer clear(text)
		jwt, err := nkeys.ParseDecoratedJWT(text)
		if err != nil || strings.Count(jwt, ".") != 2 {
			return "", fmt.Errorf("%s: %s has no JWT", field, file)
		}
		return jwt, nil
	}
	_, err := o.UserJWT()
	return err
}

// setTLS sets the TLS configuration in o, if a setting asks for TLS. It reads the files once to
// check them; later connections read them again.
func (s *Settings) setTLS(o *nats.Options) error {
	if !s.TLS() {
		return nil
	}
	o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.Insecure}
	if s.CA != "" {
		ca := s.CA
		o.RootCAsCB = func() (*x509.CertPool, error) {
			text, err := readFile(ca)
			if err != nil {
				return nil, fmt.Errorf("nats tls ca: %w", err)
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(text) {
				return nil, fmt.Errorf("nats tls ca: %s has no PEM certificate", ca)
			}
			return pool, nil
		}
		if _, err := o.RootCAsCB(); err != nil {
			return err
		}
	}
	if s.Cert != "" {
		cert, key := s.Cert, s.Key
		o.TLSCertCB = func() (tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return pair, fmt.Errorf("nats tls cert %s with key %s: %w", cert, key, err)
			}
			return pair, nil
		}
		if _, err := o.TLSCertCB(); err != nil {
			return err
		}
	}
	return nil
}

// readFile returns the contents of a file of at most maxFile bytes.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", name, info.Size(), maxFile)
	}
	return os.ReadFile(name)
}

// Refused reports whether an error of Connect says that client and server do not accept one
// another, so that only other settings help. It misses a server that refuses the client's
// certificate by hanging up, which looks like a broken connection.
func Refused(err error) bool {
	for _, refusal := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrSecureConnRequired, nats.ErrSecureConnWanted, nats.ErrNkeysNotSupported,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	var untrusted *tls.CertificateVerificationError
	var alert *net.OpError
	return errors.As(err, &untrusted) || errors.As(err, &alert) && alert.Op == "remote error"
}
