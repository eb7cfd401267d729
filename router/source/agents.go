package source

import (
	"fmt"
	"net/url"
	"strings"
)

// MaxAgents bounds the agents that are listened to.
const MaxAgents = 4096

// CheckAgents checks a list of base URLs of agents; the error names the first bad
// one, and shows it unless it may have a password.
func CheckAgents(urls []string) error {
	if len(urls) > MaxAgents {
		return fmt.Errorf("agents: %d of them, want at most %d", len(urls), MaxAgents)
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

// ShownURL is a URL as an error may show it.
func ShownURL(s string) string {
	if strings.Contains(s, "@") {
		return "a URL with credentials"
	}
	return fmt.Sprintf("%.200q", s)
}

// AgentInfo describes the stream of one agent.
type Agent struct {
	URL       string `json:"url"`
	Connected bool   `json:"connected"`
	// Publishers is how many have been announced and not said goodbye.
	Publishers int `json:"publishers"`
	// Dropped are frames that the agent dropped because this side was slow.
	Dropped uint64 `json:"dropped"`
	// Error is why the last stream ended or could not be had; empty while connected.
	Error string `json:"error,omitempty"`
}
