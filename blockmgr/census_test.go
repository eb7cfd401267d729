package blockmgr

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// slowSink holds removals up while its gate is closed.
type slowSink struct {
	*orderSink
	entered chan struct{}
	gate    chan struct{}
	once    sync.Once
}

func (s *slowSink) BlockRemoved(ns kv.NamespaceID, t kv.Tier, b Block) {
	s.once.Do(func() { close(s.entered) })
	<-s.gate
	s.orderSink.BlockRemoved(ns, t, b)
}

// What a pool has counted is in the census before, while and after it is retired, once.
func TestCensusCountsAPoolOnceWhileItIsRetired(t *testing.T) {
	sink := &slowSink{orderSink: newOrderSink(t), entered: make(chan struct{}), gate: make(chan struct{})}
	m, err := Open(Config{HostDir: t.TempDir(), HostBytes: hostBytes(64), ExtentBytes: hostBytes(8), ScrubBytesPerSecond: -1, Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := m.Pool(testNamespace("test"))
	if err == nil {
		err = p.BeginSession(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Grant(1, chain(1, 4), 0)
	if err != nil {
		t.Fatal(err)
	}
	var slots []Slot
	for _, g := range got.Grants {
		slots = append(slots, g.Slot)
	}
	noError(t, p.Commit(1, slots))
	noError(t, p.Quiesce(t.Context()))
	p.EndSession(1, nil)
	check := func(when string, wantPools int, wantRetired ...uint64) {
		pools, retired := m.Census()
		sum := retired.Committed
		for _, p := range pools {
			sum += p.Stats().Committed
		}
		if len(pools) != wantPools || !slices.Contains(wantRetired, retired.Pools) || sum != 4 {
			t.Errorf("%s: %d pools, %d retired, %d blocks committed, want %d, %v, 4", when, len(pools), retired.Pools, sum, wantPools, wantRetired)
		}
	}
	check("before", 1, 0)
	gone, err := p.Retire()
	if err != nil {
		t.Fatal(err)
	}
	<-sink.entered
	between := make(chan struct{})
	go func() { // waits for the pool's mutex as a scrape would
		defer close(between)
		check("while it goes", 0, 0, 1) // the pool may be gone before the goroutine begins
	}()
	waitFor(t, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return len(m.retiring) == 1 && len(m.entries) == 1 })
	close(sink.gate)
	<-between
	<-gone
	check("after", 0, 1)
	if n := fmt.Sprint(len(m.retiring), len(m.entries)); n != "0 0" {
		t.Errorf("pools on their way and places: %s", n)
	}
}
