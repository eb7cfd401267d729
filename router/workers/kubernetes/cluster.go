package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// accountDir is where Kubernetes mounts the service account of a pod.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// maxToken bounds the token, maxCA the certificates, and maxError the text of an error,
	// in bytes.
	maxToken = 64 << 10
	maxCA    = 1 << 20
	maxError = 300
)

// Cluster is how to reach the API server.
type Cluster struct {
	// URL is the API server's base URL, such as https://kubernetes.default.svc.
	URL string
	// TokenFile has the bearer token; empty sends none.
	TokenFile string
	// CAFile has the certificates that may sign the API server's; empty means the
	// system's.
	CAFile string
	// Namespace is the namespace of the pod; it may be empty.
	Namespace string
}

// InCluster returns the API server's address and credentials, from the environment and the service
// account that Kubernetes gives each pod. Outside a cluster the error says what is missing.
func InCluster() (Cluster, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Cluster{}, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: the router does not run in a pod")
	}
	c := Cluster{
		URL:       "https://" + net.JoinHostPort(host, port),
		TokenFile: filepath.Join(accountDir, "token"), CAFile: filepath.Join(accountDir, "ca.crt"),
	}
	if namespace, err := readLimited(filepath.Join(accountDir, "namespace"), maxToken); err == nil {
		c.Namespace = strings.TrimSpace(string(namespace))
	}
	if _, err := readLimited(c.TokenFile, maxToken); err != nil {
		return Cluster{}, fmt.Errorf("service account: %w", err)
	}
	return c, nil
}

// readLimited returns the contents of a file of at most limit bytes. A longer file is an error.
func readLimited(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%s: more than %d bytes", path, limit)
	}
	return data, err
}

// client asks the API server.
type client struct {
	cluster Cluster
	http    *http.Client
}

// newClient returns a client of the API server that trusts the certificates in the cluster's CA
// file, or those of the system without one.
func newClient(c Cluster) (*client, error) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if c.CAFile != "" {
		pem, err := readLimited(c.CAFile, maxCA)
		if err != nil {
			return nil, fmt.Errorf("certificate authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authority: %s: no PEM certificate", c.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &client{cluster: c, http: &http.Client{Transport: transport}}, nil
}

// statusError is the API server's refusal.
type statusError struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Error implements error.
func (e *statusError) Error() string {
	return fmt.Sprintf("status %d %s: %.300s", e.Code, e.Reason, e.Message)
}

// gone reports whether an error says that a resource version is too old.
func gone(err error) bool {
	var status *statusError
	return errors.As(err, &status) && (status.Code == http.StatusGone || status.Reason == "Expired")
}

// get returns the body of the API server's answer for a path; the caller closes it. The error is a
// statusError when the API server refuses. The token is read each time, because Kubernetes
// replaces it in the file.
func (c *client) get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cluster.URL+path+"?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	if c.cluster.TokenFile != "" {
		token, err := readLimited(c.cluster.TokenFile, maxToken)
		if err != nil {
			return nil, fmt.Errorf("service account: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	refused := &statusError{}
	if json.Unmarshal(text, refused) != nil || refused.Code == 0 {
		refused = &statusError{Code: answer.StatusCode, Message: string(text[:min(len(text), maxError)])}
	}
	return nil, refused
}
