package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/blockyard-ai/blockyard/publisher"
)

// embeddedURLFile is where an agent says how to reach the NATS server inside it.
func (c *Config) embeddedURLFile() string { return c.Socket + ".nats" }

// startEmbedded starts the NATS server inside the agent and writes its URL, which
// has the token, to a file for the agent's user alone. The token of an earlier
// agent's file stays, so that routers find this one as they found that.
func startEmbedded(c *Config, o publisher.EmbeddedOptions) (*publisher.Embedded, error) {
	file := c.embeddedURLFile()
	if o.Token == "" {
		var err error
		if o.Token, err = formerToken(file); err != nil {
			return nil, err
		}
	}
	server, err := publisher.StartEmbedded(o)
	if err != nil {
		return nil, err
	}
	if err := replaceFile(file, server.URL()+"\n"); err != nil {
		server.Close()
		return nil, fmt.Errorf("URL of the embedded NATS server: %w", err)
	}
	return server, nil
}

// formerToken is the token in the URL in a file; empty without the file.
func formerToken(file string) (string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("URL of an earlier embedded NATS server: %w", err)
	}
	u, err := url.Parse(strings.TrimSpace(string(b)))
	if err != nil || u.User == nil {
		return "", nil // what is not ours is written over
	}
	return u.User.Username(), nil
}

// replaceFile writes a file that only the agent's user can read.
func replaceFile(name, text string) error {
	next := name + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, name)
}
