package demo

import (
	"context"
	"sync"
	"time"
)

// gate holds requests back while it is shut. The zero value is open.
type gate struct {
	mu sync.Mutex
	// opened is closed when the gate opens; nil while it is open.
	opened chan struct{}
}

// shut makes later calls of wait block until open.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

// open lets everybody pass.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// wait returns when the gate is open or ctx ends, and how long that took.
func (g *gate) wait(ctx context.Context) time.Duration {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened == nil {
		return 0
	}
	start := time.Now()
	select {
	case <-opened:
	case <-ctx.Done():
	}
	return time.Since(start)
}
