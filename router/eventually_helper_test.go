package router

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/config"
)

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("after 20 s: not %s", what)
		case <-pause.C:
		}
	}
}

// configured is the default configuration with a change.
func configured(change func(*config.Config)) *config.Config {
	c := config.Default()
	change(&c)
	return &c
}

// firstOfEqual makes choices repeatable.
func firstOfEqual() *config.Config {
	return configured(func(c *config.Config) { c.FirstOfEqual = true })
}
