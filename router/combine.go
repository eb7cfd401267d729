package router

import (
	"context"
	"errors"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Combined is a Transport that is several at once.
//
// The messages of one publisher come through one of them and stay in order.
// While any of the transports is disconnected the whole counts as disconnected:
// nobody who may only be out of reach is forgotten.
type Combined struct {
	parts  []Transport
	frames chan Frame
	ctx    context.Context
	cancel context.CancelFunc
	pumps  sync.WaitGroup

	// lost is how many parts are disconnected. It is held while a frame about
	// that is sent, so that these frames keep their order.
	telling sync.Mutex
	lost    int

	// Publishers are found where they announced themselves last. There are two
	// generations, so that those that are silent for long fall out.
	mu    sync.Mutex
	young map[uint64]int
	old   map[uint64]int
}

var (
	_ Transport = (*Combined)(nil)
	_ Resumer   = (*Combined)(nil)
)

// maxCombined bounds one generation of publishers.
const maxCombined = 1 << 16

// Combine makes one transport of several, which it does not own: the caller
// closes the result and then them.
func Combine(parts ...Transport) *Combined {
	c := &Combined{parts: parts, frames: make(chan Frame), young: make(map[uint64]int)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for i, p := range parts {
		c.pumps.Go(func() { c.pump(i, p.Frames()) })
	}
	return c
}

// Close stops the frames and waits for the goroutines. It may be called twice.
func (c *Combined) Close() error {
	c.cancel()
	c.pumps.Wait()
	return nil
}

// pump hands on what part i brings.
func (c *Combined) pump(i int, frames <-chan Frame) {
	lost := false
	for {
		var f Frame
		select {
		case f = <-frames:
		case <-c.ctx.Done():
			return
		}
		switch f.Kind {
		case FrameDisconnected, FrameConnected:
			if was := lost; was == (f.Kind == FrameDisconnected) {
				continue
			}
			lost = !lost
			c.connection(f)
			continue
		case FrameAnnouncement:
			c.note(i, f.Data)
		}
		c.send(f)
	}
}

func (c *Combined) send(f Frame) {
	select {
	case c.frames <- f:
	case <-c.ctx.Done():
	}
}

// connection hands on that a part's connection came or went, if it is the first
// that went or the last that came.
func (c *Combined) connection(f Frame) {
	c.telling.Lock()
	defer c.telling.Unlock()
	if f.Kind == FrameDisconnected {
		if c.lost++; c.lost == 1 {
			c.send(f)
		}
		return
	}
	if c.lost--; c.lost == 0 {
		c.send(f)
	}
}

// note remembers which part an announcement came from. One that cannot be
// decoded is the receiver's to count.
func (c *Combined) note(i int, announcement []byte) {
	a, err := kvevent.DecodeAnnouncement(announcement)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= maxCombined {
		c.old, c.young = c.young, make(map[uint64]int)
	}
	c.young[a.PublisherID] = i
}

// Frames is the Transport's.
func (c *Combined) Frames() <-chan Frame { return c.frames }

// Query is the Transport's. A publisher that has not announced itself yet is
// looked for everywhere.
func (c *Combined) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*Answer, error) {
	c.mu.Lock()
	i, ok := c.young[publisher]
	if !ok {
		i, ok = c.old[publisher]
	}
	c.mu.Unlock()
	if ok {
		return c.parts[i].Query(ctx, publisher, q)
	}
	var failed error
	for _, p := range c.parts {
		a, err := p.Query(ctx, publisher, q)
		if err == nil {
			return a, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// Resume is a Resumer's, for the parts that are one. At most one of them may
// give its frames positions.
func (c *Combined) Resume(position uint64) {
	for _, p := range c.parts {
		if r, ok := p.(Resumer); ok {
			r.Resume(position)
		}
	}
}

// Stats adds up the parts; the whole is connected when all of them are.
func (c *Combined) Stats() TransportStats {
	total := TransportStats{Connected: true}
	for _, p := range c.parts {
		s := p.Stats()
		total.Connected = total.Connected && s.Connected
		total.Dropped += s.Dropped
		total.Reconnects += s.Reconnects
		total.StreamFailures += s.StreamFailures
		total.SnapshotBytes += s.SnapshotBytes
	}
	return total
}
