package servertls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/reload"
)

// Files name PEM files. The zero Files mean no TLS.
type Files struct {
	// Cert has the server's certificate and those between it and its authority, Key the key.
	Cert, Key string
	// ClientCA has the authorities of the clients' certificates. Empty asks clients for none.
	ClientCA string
}

// Validate returns an error for a certificate without a key, a key without a certificate, or a
// client CA without both. It reads no file.
func (f Files) Validate() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("tls-cert and tls-key: want both or none")
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("tls-client-ca: needs tls-cert and tls-key")
	}
	return nil
}

// Listen returns a listener on l whose connections speak TLS; for the zero Files it returns l
// itself. Accept returns a *tls.Conn whose handshake has ended; log gets the handshakes that fail.
// Changed files apply to new connections without a restart; bad ones are logged. After an error the
// caller closes l.
func (f Files) Listen(l net.Listener, log *zap.Logger) (net.Listener, error) {
	if err := f.Validate(); err != nil || f.Cert == "" {
		return l, err
	}
	paths := []string{f.Cert, f.Key}
	if f.ClientCA != "" {
		paths = append(paths, f.ClientCA)
	}
	current, err := reload.Open(paths, f.parse, func(err error) {
		log.Error("TLS files are not applied; the certificate of before stays", zap.Error(err))
	})
	if err != nil {
		return nil, err
	}
	return newListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Get(), nil },
	}, log), nil
}

// protocols are offered to clients, the preferred one first.
var protocols = []string{"h2", "http/1.1"}

// parse returns the TLS configuration from the contents of the certificate, the key and, if there is
// one, the client CA. The error names the file.
func (f Files) parse(contents [][]byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("tls-cert %s, tls-key %s: %w", f.Cert, f.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{pair}}
	if f.ClientCA != "" {
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM(contents[2]) {
			return nil, fmt.Errorf("tls-client-ca %s: no certificate in PEM", f.ClientCA)
		}
	}
	return c, nil
}
