package events

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// wireFigures are the figures of one way from wire to wire.
type wireFigures struct {
	// fill is measured while blocks come and stay, churn while each pushes an old one
	// out. Unit: nanoseconds of processor time for one named block.
	fill, churn float64
	// allocs is the number of heap allocations for one named block during churn.
	allocs float64
	// heap and rss are bytes for one tracked block.
	heap, rss float64
	// out is bytes of envelopes for one block named.
	out float64
}

// measureWire returns the costs of a consumer process: per block while o.Blocks blocks are stored
// (fill), and while each new block replaces one (churn). A plain consumer only receives and
// decodes.
func measureWire(ctx context.Context, r *cluster.Cluster, o *Options, plain bool) (wireFigures, error) {
	var f wireFigures
	s, err := openSocket()
	if err != nil {
		return f, err
	}
	defer s.close()
	p, err := r.Start(cluster.Spec{Name: fmt.Sprintf("consumer-plain-%t", plain), Command: o.Consumer})
	if err != nil {
		return f, err
	}
	defer p.Kill()
	engine := newSource(o.Blocks, 1)
	c := consumer{p: p, socket: s, engine: engine, plain: plain}
	start, err := c.take(ctx, batchBlocks) // sets up everything before the measurement
	if err != nil {
		return f, err
	}
	fill, err := c.take(ctx, o.Blocks-batchBlocks)
	if err != nil {
		return f, err
	}
	filled := float64(c.sent)
	churn, err := c.take(ctx, 2*o.Blocks) // each stored block also names a removed one
	if err != nil {
		return f, err
	}
	churned := float64(c.sent) - filled
	f.fill, f.churn = 1e9*fill.CPU/(filled-batchBlocks), 1e9*churn.CPU/churned
	f.allocs = float64(churn.Mallocs) / churned
	f.heap = (float64(fill.Heap) - float64(start.Heap)) / float64(engine.held())
	f.rss = (float64(fill.RSS) - float64(start.RSS)) / float64(engine.held())
	f.out = float64(churn.Bytes) / float64(c.sent)
	if churn.Lost > 0 {
		return f, fmt.Errorf("%d blocks were not applied", churn.Lost)
	}
	return f, nil
}

// consumer is the measured process and its input.
type consumer struct {
	p      *cluster.Process
	socket *socket
	engine *source
	plain  bool
	sent   uint64 // blocks named
}

// take sends batches whose events name at least n more blocks, and returns what the consumer used
// for them. The batches are encoded before the measurement.
func (c *consumer) take(ctx context.Context, n int) (usage, error) {
	var batches [][]byte
	first := c.sent == 0
	until := c.sent
	for until < c.sent+uint64(n) {
		payload, named := c.engine.next(nil)
		batches = append(batches, bytes.Clone(payload))
		until += uint64(named)
	}
	c.sent = until
	var u usage
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return c.p.Ask(ctx, order{Endpoint: c.socket.endpoint, Plain: c.plain, Until: until}, &u)
	})
	g.Go(func() error {
		if first {
			if err := c.socket.awaitSubscriber(); err != nil {
				return err
			}
		}
		for _, b := range batches {
			if err := c.socket.send(b); err != nil {
				return err
			}
		}
		return nil
	})
	return u, g.Wait()
}
