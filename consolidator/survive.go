package consolidator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Restarted implements sequence.Target.
func (r target) Restarted() {
	r.log.warn("engine restarted: its blocks are forgotten")
	r.conv.restarted()
	r.file.remove()
}

// Lost implements sequence.Target.
func (r target) Lost() {
	if list, ok := r.list(); ok {
		r.log.warn("engine events lost beyond replay: its list of cached blocks is used", zap.Int("cached", len(list)))
		r.conv.listed(list)
		return
	}
	if r.cfg.Cached != nil {
		r.log.warn("engine events lost beyond replay: its blocks are hidden until it lists what it has")
		r.conv.hide()
		return
	}
	r.log.warn("engine events lost beyond replay: its blocks are forgotten")
	r.conv.lost()
}

// listDue is when relist must be called next; zero when no list is wanted.
func (r *Rank) listDue() time.Time {
	if !r.conv.wantList || r.conv.unheard {
		return time.Time{}
	}
	return r.lists.next
}

// relist asks for the list if one is wanted and it is time. It waits until the
// engine can be heard: what it says after the list must not be missed.
func (r *Rank) relist(now time.Time) {
	if !r.conv.wantList || r.conv.unheard || now.Before(r.lists.next) {
		return
	}
	if list, ok := r.list(); ok {
		r.log.warn("the engine's list of cached blocks is used", zap.Int("cached", len(list)))
		r.conv.listed(list)
	}
}

// id is what this rank's checkpoint is about.
func (r *Rank) id() checkpointID {
	return checkpointID{worker: r.cfg.Worker, blockSize: r.cfg.BlockSize, engine: r.cfg.Identity}
}

// Continued implements sequence.Target.
func (r target) Continued() { r.conv.continued() }

// list gets the engine's list of cached blocks; false when there is none.
func (r *Rank) list() ([]kv.EngineHash, bool) {
	if r.cfg.Cached == nil || time.Now().Before(r.lists.failedUntil) {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.ListTimeout)
	defer cancel()
	list, err := r.cfg.Cached(ctx)
	if err == nil && len(list) > r.cfg.MaxBlocks {
		err = fmt.Errorf("%d hashes, want at most %d", len(list), r.cfg.MaxBlocks)
	}
	if err != nil {
		r.count.listFailures.Add(1)
		r.log.warn("no list of cached blocks", zap.Error(err))
		r.lists.failed(time.Now())
		return nil, false
	}
	r.count.listed.Add(1)
	r.lists.came(time.Now())
	return list, true
}

// restore begins with what the checkpoint says, if there is one.
func (r *Rank) restore(seq *sequence.Sequencer) {
	if r.cfg.Checkpoint == "" {
		return
	}
	b, err := os.ReadFile(r.cfg.Checkpoint)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var ck *checkpoint
	if err == nil {
		ck, err = parseCheckpoint(b, r.id())
	}
	if err != nil {
		r.count.checkpointsRejected.Add(1)
		r.log.warn("checkpoint ignored", zap.Error(err))
		return
	}
	r.count.restored.Add(uint64(r.conv.restore(ck)))
	// Where no replay can tell whether this is still so, or it was not certain before,
	// the engine's list can.
	r.conv.wantList = r.cfg.Cached != nil && (r.cfg.ReplayEndpoint == "" || ck.degraded)
	seq.Restore(time.Now(), ck.sequence)
}
