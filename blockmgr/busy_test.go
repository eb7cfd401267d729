package blockmgr

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// TestReadTimeGrowsWhileBlocksAreReadAndOnlyThen: also when a read does not end and is
// given up.
func TestReadTimeGrowsWhileBlocksAreReadAndOnlyThen(t *testing.T) {
	release := make(chan struct{})
	var stalled atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.IODeadline = 500 * time.Millisecond
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpRead && stalled.Load() {
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	blocks := chain(1, 8)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	if got := p.Stats().ReadMicros; got != 0 {
		t.Errorf("%d µs before the first read", got)
	}
	p.find(blocks[:4])
	p.quiesce()
	read := p.Stats().ReadMicros
	if read == 0 {
		t.Error("no time for four reads")
	}
	stalled.Store(true)
	p.find(blocks[4:]) // until the deadline
	waitFor(t, func() bool { return p.Stats().ReadsAbandoned > 0 })
	given := p.Stats().ReadMicros
	if given-read < 400_000 {
		t.Errorf("%d µs for a read that was given up after 500 ms", given-read)
	}
	if sum := p.Stats().ReadTime.Sum; sum < 400*time.Millisecond {
		t.Errorf("%v in all in the histogram of reads, with one that was given up after 500 ms", sum)
	}
	close(release)
	p.quiesce()
	last := p.Stats().ReadMicros
	if last < given {
		t.Errorf("%d µs, after %d", last, given)
	}
	if got := p.Stats().ReadMicros; got != last {
		t.Errorf("%d µs while nothing is read, %d before", got, last)
	}
}
