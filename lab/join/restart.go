package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// stopTime bounds the router's end, which saves the last snapshot.
	stopTime = 4 * time.Minute
	// compareTime bounds the comparison of the index. maxCompared is the largest index that is compared block by
	// block: its dump is about 100 bytes of JSON for a block.
	compareTime = 5 * time.Minute
	maxCompared = 8 << 20
)

// restart ends the router, which stores a snapshot on the NATS server, has the publishers replace documents while no
// router runs, and starts a router that begins with the snapshot. It prints the time until that router knows every block, and
// compares its index with the publishers' blocks. The error says that there was no snapshot, that the join was cut,
// or that blocks differ.
func (o *Options) restart(ctx context.Context, c *cluster.Cluster, k *link, fleet *cluster.Process, r *cluster.Router) error {
	began := time.Now()
	if err := r.End(ctx, stopTime); err != nil {
		return err
	}
	stopped := time.Since(began)
	missing, cancel := context.WithTimeoutCause(ctx, o.Patience, cluster.ErrTooLong)
	defer cancel()
	var missed replaced
	if err := fleet.Ask(missing, order{Replace: o.Missed}, &missed); err != nil {
		return err
	}
	again, err := o.exact(ctx, c, k, o.Missed)
	if err != nil {
		return err
	}
	compared, wrong, err := o.compare(ctx, again.router)
	if err != nil {
		return err
	}
	return again.reportRestart(o, stopped, missed.Events, compared, wrong)
}

// content sums up the blocks of an owner.
type content struct {
	blocks              int
	digest, localDigest uint64
}

func (c *content) add(tier kv.Tier, hash kv.SequenceHash, local kv.LocalHash) {
	c.blocks++
	c.digest += kv.Digest(hash, tier)
	c.localDigest += mixed(uint64(local))
}

// compare compares the router's index with the blocks of all publishers, owner by owner, and returns the numbers of
// blocks that it compared and of owners that differ. It compares nothing of an index of more than maxCompared blocks.
func (o *Options) compare(ctx context.Context, r *cluster.Router) (blocks, wrong int, err error) {
	if o.memberships() > maxCompared {
		return 0, 0, nil
	}
	index := make(map[kv.Owner]content)
	request := cluster.Request{Method: http.MethodGet, Path: "/v1/dump", Limit: compareTime}
	if err := r.Control.Do(ctx, request, func(answer io.Reader) error { return readDump(answer, index) }); err != nil {
		return 0, 0, err
	}
	fleet := FleetOptions{Engines: o.Engines, Blocks: o.Blocks}
	for agent := range uint64(o.Agents) {
		for i := range o.Engines + 1 {
			w := ownerOf(agent, i, &fleet, uint64(o.Missed))
			var want content
			w.visit(func(e *kvevent.RouterEvent) {
				for i := range e.Blocks {
					want.add(w.tier, e.Blocks[i].Hash, e.Blocks[i].Local)
				}
			})
			if blocks += want.blocks; index[w.who] != want {
				wrong++
			}
			delete(index, w.who)
		}
	}
	return blocks, wrong + len(index), nil
}

// readDump adds up the blocks of a dump by owner.
func readDump(answer io.Reader, index map[kv.Owner]content) error {
	lines := json.NewDecoder(answer)
	if _, err := lines.Token(); err != nil { // the bracket
		return err
	}
	for lines.More() {
		var e kvevent.StoredJSON
		if err := lines.Decode(&e); err != nil {
			return err
		}
		tier, err := kv.ParseTier(e.Tier)
		if err != nil {
			return err
		}
		sum := index[e.Owner()]
		for _, b := range e.Blocks() {
			sum.add(tier, kv.SequenceHash(b.Hash), kv.LocalHash(b.Tokens))
		}
		index[e.Owner()] = sum
	}
	_, err := lines.Token()
	return err
}

// reportRestart prints the figures of a restart. The error says what was wrong.
func (r *result) reportRestart(o *Options, stopped time.Duration, missed, compared, wrong int) error {
	fmt.Fprintf(o.Out, "the router stopped within %.1f s; %.0f owners resumed, %.0f events applied, %.0f questions; lost connections %d, dropped messages %.0f; %d blocks compared\n",
		stopped.Seconds(), r.metrics[prefix+"owners_resumed_total"], r.metrics[prefix+"events_applied_total"],
		r.asks, r.reconnects, r.dropped, compared)
	_, err := fmt.Fprintf(o.Out, "bench-restart: agents=%d engines=%d memberships=%d link_mib_s=%d missed_events=%d bytes=%d exact_s=%.1f link_s=%.1f peak_mib=%d questions=%.0f cuts=%d wrong=%d\n",
		o.Agents, o.Engines, o.memberships(), o.LinkBytes>>20, missed, r.bytes, r.took.Seconds(), r.link.Seconds(), r.peak>>20, r.asks, r.cuts(), wrong)
	switch {
	case r.metrics[prefix+"snapshots_loaded_total"] != 1:
		err = errors.Join(err, errors.New("no snapshot was loaded"))
	case r.cuts() > 0:
		err = errors.Join(err, fmt.Errorf("%d cuts, want none", r.cuts()))
	case wrong > 0:
		err = errors.Join(err, fmt.Errorf("the blocks of %d owners differ from the index", wrong))
	}
	return err
}
