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

// Login is what a connection is made with; what does not apply is empty. The
// functions read their files each time that they are called.
type Login struct {
	User, Password, Token string
	// PublicKey is a user's nkey, Sign signs the server's nonce with its seed.
	PublicKey string
	Sign      func(nonce []byte) ([]byte, error)
	// JWT is the user's, signed for with Sign.
	JWT func() (string, error)
	// TLS is nil when the URL's scheme says whether to encrypt.
	TLS         *tls.Config
	RootCAs     func() (*x509.CertPool, error)
	Certificate func() (tls.Certificate, error)
}

// Login reads the files that the settings name and returns how to connect. The
// error names the setting that cannot be used.
func (s *Settings) Login() (Login, error) {
	l := Login{User: s.User, Password: string(s.Password), Token: string(s.Token)}
	var err error
	switch {
	case s.Seed != "":
		err = l.setSeed("nats nkey", func() ([]byte, error) { return []byte(s.Seed), nil })
	case s.SeedFile != "":
		err = l.setSeed("nats nkey", func() ([]byte, error) { return readFile(s.SeedFile) })
	case s.Creds != "":
		err = l.setCreds(s.Creds)
	}
	if err == nil {
		err = l.setTLS(s)
	}
	if err != nil {
		return Login{}, err
	}
	return l, nil
}

// setSeed logs in with a seed.
func (l *Login) setSeed(field string, read func() ([]byte, error)) error {
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
	l.Sign = func(nonce []byte) (signed []byte, err error) {
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
		l.PublicKey = public
		return nil
	})
}

// setCreds logs in with a file of a JWT and its seed.
func (l *Login) setCreds(file string) error {
	const field = "nats creds"
	if err := l.setSeed(field, func() ([]byte, error) { return readFile(file) }); err != nil {
		return err
	}
	// The server takes the key from the JWT.
	l.PublicKey = ""
	l.JWT = func() (string, error) {
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
	_, err := l.JWT()
	return err
}

func (l *Login) setTLS(s *Settings) error {
	if !s.TLS() {
		return nil
	}
	l.TLS = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.Insecure}
	if s.CA != "" {
		ca := s.CA
		l.RootCAs = func() (*x509.CertPool, error) {
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
		if _, err := l.RootCAs(); err != nil {
			return err
		}
	}
	if s.Cert != "" {
		cert, key := s.Cert, s.Key
		l.Certificate = func() (tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return pair, fmt.Errorf("nats tls cert %s with key %s: %w", cert, key, err)
			}
			return pair, nil
		}
		if _, err := l.Certificate(); err != nil {
			return err
		}
	}
	return nil
}

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

// Refused reports whether an error of connecting says that client and server do
// not accept one another, so that trying again without a change of settings is of
// no use. A server that does not accept the client's certificate may just hang up;
// that is not told from other trouble.
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
