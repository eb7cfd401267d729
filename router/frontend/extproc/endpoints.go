package extproc

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/workers"
)

const (
	// nameTTL is how long the address of a name is used.
	nameTTL = 10 * time.Second
	// nameTimeout bounds a lookup.
	nameTimeout = 2 * time.Second
	// maxNames bounds the kept names. A full table begins anew.
	maxNames = 4096
)

// names turns the hosts of workers into addresses, because Envoy takes no names as
// destinations. It is safe for concurrent use.
type names struct {
	mu    sync.Mutex
	known map[string]found
}

type found struct {
	address string
	until   time.Time
}

func newNames() *names { return &names{known: make(map[string]found)} }

// endpoint returns the IP:PORT of a worker.
func (n *names) endpoint(ctx context.Context, w *workers.Worker) (string, error) {
	u, err := url.Parse(w.URL)
	if err != nil {
		return "", fmt.Errorf("worker %s: %w", w.URL, err)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	host := u.Hostname()
	if net.ParseIP(host) == nil {
		if host, err = n.resolve(ctx, host); err != nil {
			return "", fmt.Errorf("worker %s: %w", w.URL, err)
		}
	}
	return net.JoinHostPort(host, port), nil
}

// resolve returns the first address of a name, of IPv4 if there is one.
func (n *names) resolve(ctx context.Context, name string) (string, error) {
	n.mu.Lock()
	f, ok := n.known[name]
	n.mu.Unlock()
	if ok && time.Now().Before(f.until) {
		return f.address, nil
	}
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	all, err := net.DefaultResolver.LookupIPAddr(ctx, name)
	if err != nil {
		return "", err
	}
	address := all[0].String()
	for _, a := range all {
		if a.IP.To4() != nil {
			address = a.String()
			break
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) >= maxNames {
		clear(n.known)
	}
	n.known[name] = found{address, time.Now().Add(nameTTL)}
	return address, nil
}

// at returns the workers at some endpoints.
func (s *Server) at(ctx context.Context, endpoints map[string]bool) map[kv.WorkerID]struct{} {
	ids := make(map[kv.WorkerID]struct{})
	for _, w := range s.workers.Workers() {
		if w.URL == "" {
			continue
		}
		// A worker whose name has no address is at none of the endpoints.
		if e, err := s.names.endpoint(ctx, w); err == nil && endpoints[e] {
			ids[w.ID] = struct{}{}
		}
	}
	return ids
}
