package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/control"
)

// maxInspected bounds one answer in bytes.
const maxInspected = 64 << 20

// ErrAbsent says that a server has no such path.
var ErrAbsent = errors.New("not found")

// Server is an agent or a router that is asked over HTTP.
type Server struct {
	// URL is the address as a person reads it.
	URL    string
	client *http.Client
	base   string
}

// Open returns the server at an address: a URL, HOST:PORT or the path of a socket. It connects to
// nothing. The error says that the address is none of these, or what is wrong with the certificate.
func (c Caller) Open(address string) (*Server, error) {
	certificates, err := c.Certificates()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "unix:") {
		client, base, err := control.Client(address)
		return &Server{URL: address, client: client, base: base}, err
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("url %q: want http://host:port, or the path of a socket", address)
	}
	address = strings.TrimRight(address, "/")
	client, base, err := control.Client(address, certificates...)
	return &Server{URL: address, client: client, base: base}, err
}

// Get returns the JSON answer of the server for one path, at most 64 MiB. The error is ErrAbsent when
// the server does not have the path.
func (s *Server) Get(ctx context.Context, path string) (json.RawMessage, error) {
	body, err := s.Text(ctx, path)
	if err == nil && !json.Valid(body) {
		return nil, fmt.Errorf("%s%s: the answer is not JSON", s.URL, path)
	}
	return body, err
}

// Post sends a JSON body and header and returns the server's answer, whatever its status. The caller closes the
// answer's body.
func (s *Server) Post(ctx context.Context, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	req.Header = header.Clone()
	req.Header.Set("Content-Type", "application/json")
	return s.client.Do(req)
}

// Text is Get for an answer of any form.
func (s *Server) Text(ctx context.Context, path string) ([]byte, error) {
	target := s.URL + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxInspected+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", target, err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, fmt.Errorf("%s: %w", target, ErrAbsent)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: status %d: %.200s", target, resp.StatusCode, Printable(strings.TrimSpace(string(body))))
	case len(body) > maxInspected:
		return nil, fmt.Errorf("%s: more than %d bytes", target, maxInspected)
	}
	return body, nil
}
