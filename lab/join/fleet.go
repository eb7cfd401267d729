package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/publisher"
	natspub "github.com/blockyard-ai/blockyard/publisher/nats"
)

// FleetOptions are those of the fleet's process.
type FleetOptions struct {
	URL, Cluster            string
	Agents, Engines, Blocks int
}

// announced is the line that Fleet writes when every publisher has announced itself.
type announced struct {
	Publishers int `json:"publishers"`
}

// Fleet publishes the blocks of a fleet until ctx ends. It writes a ready line at once, and another line
// when every publisher has announced itself. It is the main function of the process that Run starts.
func Fleet(ctx context.Context, o FleetOptions, out io.Writer) (err error) {
	lines := json.NewEncoder(out)
	if err := lines.Encode(map[string]any{"ready": true}); err != nil {
		return err
	}
	for agent := range uint64(o.Agents) {
		conn, e := natspub.Connect(ctx, natspub.Options{URL: o.URL, Cluster: o.Cluster})
		if e != nil {
			return fmt.Errorf("agent %d: %w", agent, e)
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		if e := attach(conn, agent, &o); e != nil {
			return fmt.Errorf("agent %d: %w", agent, e)
		}
	}
	if err := lines.Encode(announced{o.Agents * (o.Engines + 1)}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// attach makes the publishers of an agent: one for each engine, and one for the pool.
func attach(conn *natspub.Conn, agent uint64, o *FleetOptions) error {
	pool := agent + 1
	owners := uint64(o.Engines) + 1
	meta := publisher.Meta{Pool: pool, Model: modelName, BlockSize: blockSize}
	for i := range uint64(o.Engines) {
		number := agent*owners + i
		e := newOwner(kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(number + 1)}), kv.TierDevice, number, o.Blocks)
		feed, err := conn.NewFeed(e.who, meta)
		if err == nil {
			err = feed.Attach(e)
		}
		if err != nil {
			return err
		}
	}
	p := newOwner(kv.PoolOwner(pool), kv.TierHost, agent*owners+owners-1, o.Blocks)
	meta.Pool = 0
	feed, err := conn.NewFeed(p.who, meta)
	if err != nil {
		return err
	}
	return feed.Attach(p)
}
