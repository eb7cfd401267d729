package blockmgr

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// gatedSink is a sink that can be made to wait, as one that takes its time would.
type gatedSink struct {
	EventSink
	closed  atomic.Bool
	arrived chan struct{} // has a value when a call waits
	open    chan struct{} // a value lets one call through; closed, all
	// order are the blocks that were announced.
	order []Block
}

func (s *gatedSink) BlockStored(ns kv.NamespaceID, t kv.Tier, b Block) {
	if s.closed.Load() {
		s.arrived <- struct{}{}
		<-s.open
	}
	s.order = append(s.order, b)
	s.EventSink.BlockStored(ns, t, b)
}

// warmPool opens a pool again that has n sequences of length blocks in both tiers,
// with a sink that waits at the first announcement.
func warmPool(t *testing.T, n, length int) (p *testPool, sink *gatedSink) {
	t.Helper()
	total := uint64(n * length)
	cfg := Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(2 * total), DiskBytes: 2 * total * testSlotBytes}
	first := openTestPool(t, cfg)
	for seed := range uint64(n) {
		first.store(chain(1+seed, length))
	}
	first.quiesce()
	first.finish()

	order := newOrderSink(t)
	sink = &gatedSink{EventSink: order, arrived: make(chan struct{}), open: make(chan struct{})}
	sink.closed.Store(true)
	cfg.Sink, cfg.ScrubBytesPerSecond = sink, -1
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := m.Pool(testNamespace("test"))
	if err != nil {
		t.Fatal(err)
	}
	p = &testPool{Pool: pool, t: t, m: m, sink: order, ids: &atomic.Uint64{}}
	p.ids.Store(100)
	return p, sink
}

// The pool is open before the sink has been told of a single block: an engine's HELLO
// does not wait for the announcement.
func TestPoolOpensBeforeItsBlocksAreAnnounced(t *testing.T) {
	p, sink := warmPool(t, 4, 64)
	if len(sink.order) != 0 {
		t.Errorf("%d blocks were announced while the pool was opened", len(sink.order))
	}
	<-sink.arrived
	sink.closed.Store(false)
	close(sink.open)
	p.quiesce()
	if st := p.Stats(); st.Unannounced != 0 || st.RecoveredHost != 256 || st.Recovered != 256 || len(sink.order) != 512 {
		t.Errorf("%d of 512 blocks announced, %d left", len(sink.order), st.Unannounced)
	}
	p.sid = p.begin()
	p.finish()
}

// While the blocks of a warm pool are announced, callers get the lock in between, and what they store, find and evict is reported in its order:
// parents before children, once each.
func TestPoolIsUsedWhileItsBlocksAreAnnounced(t *testing.T) {
	const length = 4 * announceSlice
	p, sink := warmPool(t, 2, length)
	<-sink.arrived
	began := make(chan SessionID, 1)
	go func() { began <- p.begin() }()
	const begins = ".(*Pool).BeginSession("
	waitFor(t, func() bool { return goroutinesIn(begins) == 1 && allAsleep(begins) })
	since := time.Now()
	waitFor(t, func() bool { return time.Since(since) > 5*time.Millisecond })
	// Between two slices the lock is free, and whoever runs first has it. A waiter that
	// was woken too late is handed the lock the next time, and those behind it too. The
	// test lets it see that it was too late, however busy the machine is.
	for slice := 1; len(began) == 0; slice++ {
		for range announceSlice {
			sink.open <- struct{}{}
			<-sink.arrived
		}
		waitFor(t, func() bool { return allAsleep(begins) })
		if slice == 4 && goroutinesIn(begins) == 1 {
			t.Error("a caller waits for more than four slices")
			break
		}
	}
	sink.closed.Store(false)
	go func() {
		for range sink.arrived { // a call that came to wait
		}
	}()
	close(sink.open)
	p.sid = <-began
	old := chain(1, length+8) // 8 more than there are
	if n := p.store(old); n != 8 {
		t.Errorf("%d blocks granted", n)
	}
	evicted := chain(2, length)[length-4:]
	p.resetHost(evicted)
	if got := len(p.find(old)); got != length+8 {
		t.Errorf("%d blocks found", got)
	}
	p.quiesce()
	close(sink.arrived)
	// A block that goes before its turn is announced and removed at once.
	seen := map[kv.SequenceHash]bool{evicted[0].ParentSeq: true}
	for _, b := range sink.order {
		if b.Position > 0 && !seen[b.ParentSeq] {
			t.Errorf("block %d of a sequence was announced before its parent", b.Position)
		}
		seen[b.Seq] = true
	}
	p.finish() // compares the dump with what the sink was told
}

// A pool can be closed in the middle of the announcement.
func TestPoolClosesWhileItsBlocksAreAnnounced(t *testing.T) {
	p, sink := warmPool(t, 2, 2*announceSlice)
	<-sink.arrived
	sink.closed.Store(false)
	close(sink.open)
	p.m.Abandon()
}

// Quiesce waits for the announcement, and Close does not, however slow the sink is.
func TestCloseDoesNotWaitForTheAnnouncement(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	p.quiesce()
	idle := func(closing bool) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.announcing, p.life.closing = true, closing
		quiet := p.quietLocked()
		p.announcing, p.life.closing = false, false
		return quiet
	}
	if idle(false) || !idle(true) {
		t.Errorf("quiet during the announcement: %v, of a pool that closes: %v", idle(false), idle(true))
	}
}

// Checksums are computed by as many goroutines as there are processors.
func TestSealingFollowsTheProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	newTestPool(t, Config{HostBytes: hostBytes(4)})
	waitFor(t, func() bool { return goroutinesIn(".(*Mover).RunSealer(") == 3 })
}

// goroutinesIn is how many goroutines are in a function.
func goroutinesIn(function string) int { return strings.Count(stacks(), function) }

// allAsleep reports whether every goroutine that wants a mutex, or is in a function,
// sleeps until the mutex is free: none was woken and has yet to look.
func allAsleep(function string) bool {
	for goroutine := range strings.SplitSeq(stacks(), "\n\n") {
		state, calls, _ := strings.Cut(goroutine, "\n")
		wants := strings.Contains(calls, "(*Mutex).lockSlow(") || strings.Contains(calls, function)
		if wants && !strings.Contains(state, "[sync.Mutex.Lock") {
			return false
		}
	}
	return true
}

// stacks are the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
