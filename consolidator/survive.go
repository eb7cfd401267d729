package consolidator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// restarted implements batchTarget.
func (r *Rank) restarted() {
	r.log.warn("engine restarted: its blocks are forgotten")
	r.conv.restarted()
	r.file.remove()
}

// lost implements batchTarget.
func (r *Rank) lost() {
	if list, ok := r.list(); ok {
		r.log.warn("engine events lost beyond replay: its list of cached blocks is used", zap.Int("cached", len(list)))
		r.conv.listed(list)
		return
	}
	r.log.warn("engine events lost beyond replay: its blocks are forgotten")
	r.conv.lost()
}

// continued implements batchTarget.
func (r *Rank) continued() { r.conv.continued() }

// list gets the engine's list of cached blocks; false when there is none.
func (r *Rank) list() ([]kv.EngineHash, bool) {
	if r.cfg.Cached == nil || time.Now().Before(r.noList) {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.ReplayTimeout)
	defer cancel()
	list, err := r.cfg.Cached(ctx)
	if err == nil && len(list) > r.cfg.MaxBlocks {
		err = fmt.Errorf("%d hashes, want at most %d", len(list), r.cfg.MaxBlocks)
	}
	if err != nil {
		r.count.listFailures.Add(1)
		r.log.warn("no list of cached blocks", zap.Error(err))
		r.noList = time.Now().Add(listPause)
		return nil, false
	}
	r.count.listed.Add(1)
	return list, true
}

// restore begins with what the checkpoint says, if there is one.
func (r *Rank) restore(seq *sequencer) {
	if r.cfg.Checkpoint == "" {
		return
	}
	b, err := os.ReadFile(r.cfg.Checkpoint)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var ck *checkpoint
	if err == nil {
		ck, err = parseCheckpoint(b, r.cfg.Worker, r.cfg.BlockSize)
	}
	if err != nil {
		r.count.checkpointsRejected.Add(1)
		r.log.warn("checkpoint ignored", zap.Error(err))
		return
	}
	r.count.restored.Add(uint64(r.conv.restore(ck)))
	seq.restore(time.Now(), ck.sequence)
}
