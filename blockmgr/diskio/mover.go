package diskio

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// Pool has the functions of a pool that its Mover calls.
type Pool interface {
	// Begin counts one operation, which Done ends. The caller holds the pool's lock.
	Begin()
	// Done ends n operations. The caller holds the pool's lock.
	Done(n int)
	// GrowDisk makes disk extents until n slots are free or the tier is at its size. The
	// caller does not hold the pool's lock.
	GrowDisk(n int)
}

// Filter chooses the blocks to write to disk. The Mover asks when a block is stored, and each
// time a lookup finds the block in host memory only. Several goroutines ask at once. Filter
// must not block.
type Filter interface {
	ShouldOffload(h kv.SequenceHash) bool
}

// Budget bounds the bytes that are written. It must not block.
type Budget interface {
	// Reserve reserves the bytes of a block. With false the block is not written.
	Reserve(bytes uint64, now time.Time) bool
	// Settle ends a reservation. With written false the disk was not written.
	Settle(bytes uint64, written bool, now time.Time)
	// Wrote tells of bytes that are written in any case.
	Wrote(bytes uint64, now time.Time)
	// Most returns the most bytes that Reserve ever grants.
	Most() uint64
}

// Options say how a Mover works. All fields but Filter and Budget are needed.
type Options struct {
	// BlockBytes is the size of a block, SlotBytes that of its slot.
	BlockBytes, SlotBytes uint64
	// WriteBytes is the size of a slot on disk: SlotBytes and what encryption adds.
	WriteBytes uint64
	// Transfers bounds the blocks that are read at once, and those that are written at once.
	// Batch is the number of blocks that share the two writes of their records.
	Transfers, Batch int
	// Deadline is the time after which an unfinished operation means that the disk stalls.
	Deadline time.Duration
	// ScrubBytesPerSecond is the rate of all scrubbers that share a Health.
	ScrubBytesPerSecond int64
	// Filter chooses the blocks that are written; nil for all.
	Filter Filter
	// Budget bounds the bytes that all pools on the disk write; nil for no bound.
	Budget Budget
	Log    *zap.Logger
	// Health is shared by all pools on the disk.
	Health *Health
	// Stop ends all Run methods when it is closed, after Wake.
	Stop <-chan struct{}
}

// Mover moves the blocks of one pool between host memory and disk, and computes and
// compares their checksums. NewMover makes one.
//
// The caller of a method holds the pool's lock, unless the method's comment says otherwise.
// The Run methods lock by themselves: they take work under the lock (take…), do it without
// the lock, and lock again to finish it (finish…). A slot in work is held. A finish function
// looks at its slot's state again, unless its comment says why the state cannot have changed.
type Mover struct {
	Options

	// Joining: extents of an earlier agent may still come from the disk. No block is offered
	// to the disk until all have come.
	Joining bool
	// Counters has all counters but ReadMicros, which Snapshot computes.
	Counters Counters

	pool  Pool
	mu    *sync.Mutex
	slots *tier.Set
	// closed: the memory is unmapped. Operations that end now change nothing.
	closed bool

	reads  reads
	writes writes
	seals  seals
	scrub  scrub
	faults faults
}

// Counters count the operations of a Mover since its pool opened.
type Counters struct {
	// Promotions counts blocks read from disk into the host tier. PromotionsShared counts
	// lookups that joined a read or a check under way.
	Promotions       uint64 `json:"promotions"`
	PromotionsShared uint64 `json:"promotions_shared"`
	// WriteBehind counts blocks written to disk. WriteBehindDropped counts offers that found
	// the queue full or the disk failing and are repeated later. WriteBehindRefused counts
	// blocks that found no disk slot.
	WriteBehind        uint64 `json:"write_behind"`
	WriteBehindDropped uint64 `json:"write_behind_dropped"`
	WriteBehindRefused uint64 `json:"write_behind_refused"`
	BytesRead          uint64 `json:"bytes_read"`
	BytesWritten       uint64 `json:"bytes_written"`
	// ReadMicros is the time in µs during which at least one block was being read from
	// disk and checked.
	ReadMicros uint64 `json:"read_micros"`
	// WriteBehindFiltered counts offers that the filter refused. WriteRetries counts failed
	// writes that are tried again. WritesStalled counts writes that took longer than the
	// deadline.
	WriteBehindFiltered uint64 `json:"write_behind_filtered"`
	WriteRetries        uint64 `json:"write_retries"`
	WritesStalled       uint64 `json:"writes_stalled"`
	// ReadRetries counts second reads of a block. ReadsAbandoned counts reads that did not
	// end in time. ReadsCancelled counts queued reads that were dropped: no lookup waited for
	// them any more, or they were behind an abandoned read.
	ReadRetries    uint64 `json:"read_retries"`
	ReadsAbandoned uint64 `json:"reads_abandoned"`
	ReadsCancelled uint64 `json:"reads_cancelled"`
	// CorruptReads counts blocks on disk that were dropped because their bytes or record did
	// not match.
	CorruptReads uint64 `json:"corrupt_reads"`
	// ReadErrors, WriteErrors and TableErrors count failed disk operations.
	ReadErrors  uint64 `json:"read_errors"`
	WriteErrors uint64 `json:"write_errors"`
	TableErrors uint64 `json:"table_errors"`
	// Verified counts blocks recovered in host memory whose bytes have matched their
	// checksums since. CorruptHost counts blocks in host memory that were dropped because
	// their bytes did not match.
	Verified    uint64 `json:"verified"`
	CorruptHost uint64 `json:"corrupt_host"`
	// Scrubbed counts blocks that the scrubber compared with their checksums.
	Scrubbed uint64 `json:"scrubbed"`
	// ReadTime is the time to read and verify a block, failed and abandoned reads included. WriteTime
	// is the time to write a block's bytes, failed writes included. SealTime is the time of a block's
	// first checksum. All three leave out the wait in a queue.
	ReadTime  metric.Durations `json:"-" metric:"disk_read"`
	WriteTime metric.Durations `json:"-" metric:"disk_write"`
	SealTime  metric.Durations `json:"-" metric:"seal"`
}

// Queues are gauges of a Mover.
type Queues struct {
	// Seal, Write and Read count the queued blocks and those in work. Deferred counts the
	// blocks that will be offered to the disk again.
	Seal, Write, Read, Deferred int
	// ReadFaults and WriteFaults count the disk slots whose last read or write failed.
	ReadFaults, WriteFaults int
}

// NewMover makes a Mover for the slots of a pool, which mu, the pool's lock, guards. The caller
// starts the goroutines; see ReadLoops, WriteLoops and the Run methods.
func NewMover(o Options, pool Pool, mu *sync.Mutex, slots *tier.Set) *Mover {
	m := &Mover{Options: o, pool: pool, mu: mu, slots: slots}
	m.reads = reads{flights: map[registry.Ref]*Flight{}, work: sync.NewCond(mu), limit: make(chan struct{}, o.Transfers)}
	m.writes = writes{work: sync.NewCond(mu), limit: make(chan struct{}, o.Transfers)}
	m.seals.work = sync.NewCond(mu)
	m.faults = faults{writes: map[registry.Ref]*writeFault{}, reads: map[registry.Ref]*readFault{}}
	return m
}

// ReadLoops returns the number of goroutines that should run RunReader. Transfers of them read
// at a time. The others verify blocks, so that the disk does not wait for checksums.
func (o *Options) ReadLoops() int { return o.Transfers + o.Transfers/2 }

// WriteLoops returns the number of goroutines that should run RunWriter. While one writes its
// records, the other keeps the disk busy.
func (o *Options) WriteLoops() int { return min(2, o.Transfers) }

// Wake wakes all Run methods, so that they see that Stop is closed or that there is work.
func (m *Mover) Wake() {
	m.seals.work.Broadcast()
	m.writes.work.Broadcast()
	m.reads.work.Broadcast()
}

// Close says that the memory is about to be unmapped. Operations that end later change nothing.
func (m *Mover) Close() { m.closed = true }

// Snapshot returns the counters and the lengths of the queues.
func (m *Mover) Snapshot() (Counters, Queues) {
	c := m.Counters
	c.ReadMicros = m.reads.busyTime.Micros(time.Now())
	return c, Queues{
		Seal: m.seals.queue.Len(), Write: m.writes.queue.Len(), Read: len(m.reads.flights), Deferred: m.writes.deferred.Len(),
		ReadFaults: len(m.faults.reads), WriteFaults: len(m.faults.writes),
	}
}

// Stuck counts the abandoned reads that have not returned.
func (m *Mover) Stuck() int { return m.reads.abandoned }

// ForgetExtent drops the faults and the deferred slots of an extent that leaves its tier.
func (m *Mover) ForgetExtent(lv registry.Level, extent uint32) {
	if lv == registry.Disk {
		m.faults.forget(extent)
	} else {
		m.writes.deferred.Forget(extent)
	}
}

// stopped reports whether the Run methods must end.
func (m *Mover) stopped() bool {
	select {
	case <-m.Stop:
		return true
	default:
		return false
	}
}
