package admission

import (
	"net"
	"net/http"
	"sync"
)

// Counter bounds the requests in progress by name, such as a tenant or an address. The zero
// Counter is ready, and may be used from any goroutine.
type Counter struct {
	mu     sync.Mutex
	counts map[string]int
}

// Enter counts a request in. ok is false when limit requests of the name are in progress;
// a limit of 0 is none. Each Enter with ok needs one leave.
func (c *Counter) Enter(name string, limit int) (leave func(), ok bool) {
	if limit == 0 {
		return func() {}, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[name] >= limit {
		return nil, false
	}
	if c.counts == nil {
		c.counts = make(map[string]int)
	}
	c.counts[name]++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.counts[name]--; c.counts[name] == 0 {
			delete(c.counts, name)
		}
	}), true
}

// ClientOf returns the address of a client without its port.
func ClientOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
