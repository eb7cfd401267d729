package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/cluster"
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

// order has every publisher replace so many documents, one after the other.
type order struct {
	Replace int `json:"replace"`
}

// replaced is the answer to an order: the number of events, all of which the connections have sent.
type replaced struct {
	Events int `json:"events"`
}

// Fleet publishes the blocks of a fleet until ctx ends. It writes a ready line at once, and another line
// when every publisher has announced itself. Then it follows the orders of in. It is the main function of the
// process that Run starts.
func Fleet(ctx context.Context, o FleetOptions, in io.Reader, out io.Writer) (err error) {
	lines := json.NewEncoder(out)
	if err := lines.Encode(map[string]any{"ready": true}); err != nil {
		return err
	}
	var all []member
	for agent := range uint64(o.Agents) {
		conn, e := natspub.Connect(ctx, natspub.Options{URL: o.URL, Cluster: o.Cluster})
		if e != nil {
			return fmt.Errorf("agent %d: %w", agent, e)
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		members, e := attach(conn, agent, &o)
		if e != nil {
			return fmt.Errorf("agent %d: %w", agent, e)
		}
		all = append(all, members...)
	}
	if err := lines.Encode(announced{len(all)}); err != nil {
		return err
	}
	orders := make(chan order)
	go follow(ctx, in, orders) // it ends with the process
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-orders:
			events, err := replaceAll(ctx, all, o.Replace)
			if err == nil {
				err = lines.Encode(replaced{events})
			}
			if err != nil {
				return err
			}
		}
	}
}

// follow reads orders until in or ctx ends.
func follow(ctx context.Context, in io.Reader, orders chan<- order) {
	for lines := json.NewDecoder(in); ; {
		var o order
		if lines.Decode(&o) != nil { // the harness has ended
			return
		}
		select {
		case orders <- o:
		case <-ctx.Done():
			return
		}
	}
}

// member is an owner with its publisher.
type member struct {
	*owner
	feed *natspub.Feed
}

// replaceAll has every owner replace n documents, and waits until the connections have sent the events.
func replaceAll(ctx context.Context, all []member, n int) (events int, err error) {
	for range n {
		for _, m := range all {
			m.replace()
			events += 2
		}
		for _, m := range all {
			err := cluster.Until(ctx, sendTime, sendLook, func() (bool, error) { return m.feed.Stats().Unsent == 0, nil })
			if err != nil {
				return 0, fmt.Errorf("events of %s: %w", m.who, err)
			}
		}
	}
	return events, nil
}

const (
	// sendTime bounds the wait until a publisher has sent its events, and sendLook is the time between two looks.
	sendTime, sendLook = 30 * time.Second, 2 * time.Millisecond
)

// attach makes the publishers of an agent: one for each engine, and one for the pool.
func attach(conn *natspub.Conn, agent uint64, o *FleetOptions) (all []member, err error) {
	for i := range o.Engines + 1 {
		w := ownerOf(agent, i, o, 0)
		meta := publisher.Meta{Model: modelName, BlockSize: blockSize}
		if i < o.Engines {
			meta.Pool = agent + 1
		}
		feed, err := conn.NewFeed(w.who, meta)
		if err == nil {
			w.sink = feed
			err = feed.Attach(w)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, member{w, feed})
	}
	return all, nil
}

// ownerOf returns owner i of an agent, which has replaced some documents. The last owner of an agent is its pool.
func ownerOf(agent uint64, i int, o *FleetOptions, replaced uint64) *owner {
	number := agent*uint64(o.Engines+1) + uint64(i)
	if i == o.Engines {
		return newOwner(kv.PoolOwner(agent+1), kv.TierHost, number, o.Blocks, replaced)
	}
	return newOwner(kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(number + 1)}), kv.TierDevice, number, o.Blocks, replaced)
}
