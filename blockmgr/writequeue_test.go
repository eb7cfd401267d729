package blockmgr

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestBlocksAreWrittenInOrderOfPriorityThenAge(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := diskPool(t, func(cfg *Config) {
		cfg.HostBytes, cfg.TransferBatch, cfg.Transfers = hostBytes(32), 1, 1
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpWrite {
				once.Do(func() { close(entered) })
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	p.store(chain(100, 1))
	<-entered
	var blocks []Block
	for i, priority := range []uint32{0, 5, 0, 7, 5, 7} {
		b := chain(uint64(i), 1)
		blocks = append(blocks, b...)
		p.storeAt(b, priority)
		waitFor(t, func() bool { return p.Stats().WriteQueue == i+1 })
	}
	close(release)
	p.quiesce()
	var got []int
	p.sink.mu.Lock()
	defer p.sink.mu.Unlock()
	for _, k := range p.sink.stores {
		if i := slices.IndexFunc(blocks, func(b Block) bool { return b.Key == k.key }); k.tier == kv.TierDisk && i >= 0 {
			got = append(got, i)
		}
	}
	if want := []int{3, 5, 1, 4, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("written in order %v, want %v", got, want)
	}
}

// countingFilter passes a question on and counts it.
type countingFilter struct {
	filter OffloadFilter

	mu    sync.Mutex
	asked map[kv.SequenceHash]int
}

func (f *countingFilter) ShouldOffload(h kv.SequenceHash) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[h]++
	return f.filter.ShouldOffload(h)
}

// take tells how often the blocks were asked about since the last time.
func (f *countingFilter) take(blocks []Block) (asked []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range blocks {
		asked = append(asked, f.asked[b.Seq])
	}
	clear(f.asked)
	return asked
}

func TestOnlyBlocksThatWereHitAreWrittenAndTheFilterSeesStoresAndHits(t *testing.T) {
	frequency, err := policy.NewFrequencyFilter(policy.FrequencyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	filter := &countingFilter{filter: frequency, asked: map[kv.SequenceHash]int{}}
	p := diskPool(t, func(cfg *Config) { cfg.Filter = filter })
	blocks := chain(1, 3)
	p.store(blocks)
	p.quiesce()
	if got := filter.take(blocks); !slices.Equal(got, []int{1, 1, 1}) || p.tiersOf(blocks) != "HHH" {
		t.Errorf("asked %v when they were stored, resident %q", got, p.tiersOf(blocks))
	}
	p.find(blocks[:2])
	p.quiesce()
	if got := filter.take(blocks); !slices.Equal(got, []int{1, 1, 0}) || p.tiersOf(blocks) != "BBH" {
		t.Errorf("asked %v at hits of two, resident %q", got, p.tiersOf(blocks))
	}
	// What is on disk already is no question any more, and a grant is no hit.
	p.find(blocks[:2])
	p.store(blocks)
	p.quiesce()
	if got := filter.take(blocks); !slices.Equal(got, []int{0, 0, 0}) || p.tiersOf(blocks) != "BBH" {
		t.Errorf("asked %v, resident %q", got, p.tiersOf(blocks))
	}
	if st := p.Stats(); st.WriteBehindFiltered != 3 || st.WriteBehind != 2 {
		t.Errorf("%d offers filtered, %d blocks written", st.WriteBehindFiltered, st.WriteBehind)
	}
}

func TestFilterIsNotAskedWhereThereIsNoDisk(t *testing.T) {
	filter := &countingFilter{asked: map[kv.SequenceHash]int{}}
	p := newTestPool(t, Config{HostBytes: hostBytes(8), Filter: filter})
	blocks := chain(1, 2)
	p.store(blocks)
	p.quiesce()
	p.find(blocks)
	if got := filter.take(blocks); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("asked %v", got)
	}
}

// only is a filter that wants some blocks on disk.
type only map[kv.SequenceHash]bool

func (o only) ShouldOffload(h kv.SequenceHash) bool { return o[h] }

func TestFilterIsAskedForABlockInASlotThatWaitedForTheDisk(t *testing.T) {
	wanted := only{}
	for i := range uint64(8) {
		wanted[chain(50+i, 1)[0].Seq] = true
	}
	p, gate, armed := stallingPool(t, storagetest.OpWrite, func(cfg *Config) {
		cfg.Transfers, cfg.TransferBatch, cfg.Filter, cfg.IODeadline = 1, 1, wanted, time.Minute
	})
	armed.Store(true)
	sealed := func() bool { return p.Stats().SealQueue == 0 }
	for i := range uint64(8) {
		p.store(chain(50+i, 1)) // the last ones find the queue full
		waitFor(t, sealed)
	}
	var unwanted []Block
	for i := range uint64(3) {
		b := chain(90+i, 1)
		unwanted = append(unwanted, b...)
		p.store(b)
		waitFor(t, sealed)
	}
	armed.Store(false)
	gate.Open()
	p.quiesce()
	for _, tier := range p.tiersOf(unwanted) {
		if tier == 'B' || tier == 'D' {
			t.Errorf("blocks that the filter does not want are in %s", p.tiersOf(unwanted))
		}
	}
}
