package blockmgr

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
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

// pacedWrites is a file whose writes take a millisecond. It notes their offsets in order.
type pacedWrites struct {
	extent.File
	mu    *sync.Mutex
	order *[]int64
}

func (f pacedWrites) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	*f.order = append(*f.order, off)
	f.mu.Unlock()
	time.Sleep(time.Millisecond)
	return f.File.WriteAt(p, off)
}

// While one writer writes records, the other one's blocks keep the disk busy. So the batches of two
// writers are written one after the other, and not in turn.
func TestBatchesAreWrittenOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const batch, depth = 16, 2
		var mu sync.Mutex
		var order []int64
		p := newTestPool(t, Config{
			HostBytes: hostBytes(64), DiskBytes: 64 * testSlotBytes, ExtentBytes: 64 * testSlotBytes,
			Transfers: depth, TransferBatch: batch, ScrubBytesPerSecond: -1,
			WrapDisk: func(path string, f extent.File) extent.File {
				if filepath.Base(path) == "slots.table" {
					return f
				}
				return pacedWrites{f, &mu, &order}
			},
		})
		for seed := range uint64(depth) { // a block for each writer, so that the next blocks wait
			p.store(chain(100+seed, 1))
			synctest.Wait()
		}
		p.store(chain(1, 2*batch))
		p.quiesce()
		// Slots are taken in the order of the blocks.
		if len(order) != depth+2*batch {
			t.Fatalf("%d writes, want %d", len(order), depth+2*batch)
		}
		for i, off := range order[depth:] {
			if slot := int(off/testSlotBytes) - depth; slot < i-depth || slot > i+depth {
				t.Errorf("write %d is block %d, want one of %d to %d", i, slot, i-depth, i+depth)
			}
		}
	})
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
