package source

import (
	"fmt"
	"net/url"
	"strings"
)

// MaxAgents bounds the agents of a router.
const MaxAgents = 4096

// CheckAgents checks the base URLs of agents: a scheme, a host and nothing else. The error shows the
// first bad URL, unless the URL may contain a password.
func CheckAgents(urls []string) error {
	if len(urls) > MaxAgents {
		return fmt.Errorf("agents: %d agents, want at most %d", len(urls), MaxAgents)
	}
	for i, s := range urls {
		u, err := url.Parse(s)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" || (u.Path != "" && u.Path != "/") {
			return fmt.Errorf("agents[%d]: %s: want http://host:port or https://host:port", i, ShownURL(s))
		}
	}
	return nil
}

// ShownURL formats a URL for errors, without credentials.
func ShownURL(s string) string {
	if strings.Contains(s, "@") {
		return "a URL with credentials"
	}
	return fmt.Sprintf("%.200q", s)
}

// Agent describes the stream of one agent.
type Agent struct {
	URL       string `json:"url"`
	Connected bool   `json:"connected"`
	// Publishers is how many publishers the agent has announced.
	Publishers int `json:"publishers"`
	// Dropped counts frames that the agent dropped because the router was slow.
	Dropped uint64 `json:"dropped"`
	// Error is why the stream is down; empty while connected.
	Error string `json:"error,omitempty"`
}
