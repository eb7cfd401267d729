package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
)

// Command shows a router and its agents.
type Command struct {
	Router string        `placeholder:"ADDRESS" help:"HTTP address of a router, or its control socket."`
	Agents []string      `name:"agent" placeholder:"ADDRESS" help:"Admin server of an agent; repeatable. Default: the agents that the router follows over HTTP."`
	Every  time.Duration `default:"2s" help:"Time between two looks, at least 100ms. Rates are over this time."`
	Once   bool          `help:"Print one screen after two looks, and end. So does an output that is no terminal."`
	inspect.Caller
}

// Help implements kong's HelpProvider.
func (Command) Help() string {
	return `Keys: tab or the right arrow shows the next view (all, tiers, workers, queues, events), the left arrow the one before; the up and down arrows scroll; q ends. docs/watch.md explains the columns.`
}

const (
	minEvery = 100 * time.Millisecond
	// maxAgents bounds the agents that are asked.
	maxAgents = 64
	// onceWidth is the width of a screen without a terminal.
	onceWidth = 80
)

// Validate checks the flags. Kong reports its error as one of usage.
func (c *Command) Validate() error {
	switch {
	case c.Every < minEvery:
		return fmt.Errorf("--every %v: want at least %v", c.Every, minEvery)
	case c.Router == "" && len(c.Agents) == 0:
		return errors.New("nothing to show: want --router or --agent")
	case len(c.Agents) > maxAgents:
		return fmt.Errorf("--agent: %d agents, want at most %d", len(c.Agents), maxAgents)
	}
	for _, address := range append([]string{c.Router}, c.Agents...) {
		if address == "" {
			continue
		}
		if _, err := c.Open(address); err != nil {
			return err
		}
	}
	return nil
}

// Run shows the servers until ctx ends or the user presses q. With --once, and when stdout is no
// terminal, it prints one screen; the error then says that no server answered.
func (c *Command) Run(ctx context.Context, stdout io.Writer) error {
	terminal, ok := stdout.(*os.File)
	if ok {
		_, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		ok = err == nil
	}
	if c.Once || !ok {
		width := onceWidth
		if ok {
			if size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ); err == nil {
				width = max(width, int(size.Col))
			}
		}
		return c.once(ctx, stdout, width)
	}
	screen, err := tcell.NewScreen()
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	return c.show(ctx, screen)
}

// once prints all views after two looks.
func (c *Command) once(ctx context.Context, stdout io.Writer, width int) error {
	before := c.look(ctx)
	select {
	case <-time.After(c.Every):
	case <-ctx.Done():
		return nil
	}
	now := c.look(ctx)
	if now.router == nil && len(now.agents) == 0 {
		return errors.New(strings.Join(now.problems, "; "))
	}
	var b strings.Builder
	for _, l := range render(viewAll, before, now, width) {
		b.WriteString(strings.TrimRight(l.text, " ") + "\n")
	}
	_, err := io.WriteString(stdout, b.String())
	return err
}
