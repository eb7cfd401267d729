package inspect

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// Caller has the flags for the certificate that a command shows to servers that ask for one. The zero Caller has
// no certificate.
type Caller struct {
	ClientCert string `name:"client-cert" type:"path" placeholder:"FILE" env:"BLOCKYARD_CLIENT_CERT" help:"PEM certificate to show to a listener that asks for one, such as one with --control-tls-client-ca."`
	ClientKey  string `name:"client-key" type:"path" placeholder:"FILE" env:"BLOCKYARD_CLIENT_KEY" help:"PEM key of --client-cert."`
}

// Certificates reads the files and returns the certificate, none without files. The error names the flags.
func (c Caller) Certificates() ([]tls.Certificate, error) {
	if c.ClientCert == "" && c.ClientKey == "" {
		return nil, nil
	}
	if c.ClientCert == "" || c.ClientKey == "" {
		return nil, errors.New("--client-cert and --client-key: want both or none")
	}
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		return nil, fmt.Errorf("--client-cert %s, --client-key %s: %w", c.ClientCert, c.ClientKey, err)
	}
	return []tls.Certificate{pair}, nil
}
