package storagetest

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// Fault is what a Faulty file does instead of an operation, or to it. An operation for
// which a fault means nothing goes through.
type Fault uint8

const (
	// FaultNone lets the operation through.
	FaultNone Fault = iota
	// FaultEIO moves nothing and returns EIO. Any operation.
	FaultEIO
	// FaultENOSPC moves nothing and returns ENOSPC. Any operation.
	FaultENOSPC
	// FaultShort moves about half of the bytes of a read or write. The count says so.
	FaultShort
	// FaultTorn writes the first half, in whole sectors, and reports success. The second
	// half of a read is zeros.
	FaultTorn
	// FaultStall waits for the file's Gate and goes through. Any operation.
	FaultStall
	// FaultFlip inverts one bit of the bytes read or written.
	FaultFlip
	// FaultLost does nothing and reports success. Writes and syncs.
	FaultLost

	numFaults = iota
)

// String returns the fault's name in reports.
func (f Fault) String() string {
	names := [numFaults]string{"none", "EIO", "ENOSPC", "short", "torn", "stall", "flip", "lost"}
	if f >= numFaults {
		return fmt.Sprintf("fault %d", uint8(f))
	}
	return names[f]
}

// Op names an operation of a File.
type Op uint8

const (
	// OpRead is ReadAt.
	OpRead Op = iota
	// OpWrite is WriteAt.
	OpWrite
	// OpAllocate is Allocate.
	OpAllocate
	// OpSync is Sync.
	OpSync

	numOps = iota
)

// String returns the operation's name in reports.
func (op Op) String() string {
	names := [numOps]string{"read", "write", "allocate", "sync"}
	if op >= numOps {
		return fmt.Sprintf("operation %d", uint8(op))
	}
	return names[op]
}

// Faulty is a File whose Plan decides, before each operation, what goes wrong. It
// wraps a PowerLoss's file, and is not wrapped by one: a PowerLoss must see what really
// reached the disk.
type Faulty struct {
	extent.File
	// Plan is called with the operation and its number, which counts from 1 for each
	// kind of operation. It may be called concurrently. RandomPlan makes one.
	Plan func(op Op, n int) Fault
	// Gate is what stalled operations wait for; a Plan that stalls needs one.
	Gate *Gate

	mu sync.Mutex
	// counts are the operations so far, injected the operations that a fault hit.
	counts   [numOps]int
	injected [numOps][numFaults]int
}

var _ extent.File = (*Faulty)(nil)

// Injected counts the operations of a kind that the plan gave a fault.
func (f *Faulty) Injected(op Op, fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected[op][fault]
}

// next asks the plan for the fault of the next operation of that kind, and counts both. n is the
// operation's number. It waits for the gate if the operation stalls. With an err the operation moves
// nothing and returns err.
func (f *Faulty) next(op Op) (fault Fault, n int, err error) {
	f.mu.Lock()
	f.counts[op]++
	n = f.counts[op]
	f.mu.Unlock()
	fault = f.Plan(op, n)
	f.mu.Lock()
	f.injected[op][fault]++
	f.mu.Unlock()
	switch fault {
	case FaultEIO:
		err = unix.EIO
	case FaultENOSPC:
		err = unix.ENOSPC
	case FaultStall:
		if f.Gate == nil {
			panic(fmt.Sprintf("BUG: the plan stalls %s %d of a file without a gate", op, n))
		}
		f.Gate.wait()
	}
	return fault, n, err
}

// ReadAt reads with the fault that the plan gives this read.
func (f *Faulty) ReadAt(p []byte, off int64) (int, error) {
	fault, n, err := f.next(OpRead)
	if err != nil {
		return 0, err
	}
	read, err := f.File.ReadAt(p, off)
	if err != nil {
		return read, err
	}
	switch fault {
	case FaultShort:
		read /= 2
	case FaultTorn:
		clear(p[len(p)/2:])
	case FaultFlip:
		flipBit(p, n)
	}
	return read, nil
}

// WriteAt writes with the fault that the plan gives this write.
func (f *Faulty) WriteAt(p []byte, off int64) (int, error) {
	fault, n, err := f.next(OpWrite)
	if err != nil {
		return 0, err
	}
	switch fault {
	case FaultLost:
		return len(p), nil
	case FaultShort:
		// Whole pages, so that O_DIRECT takes the half as well.
		return f.File.WriteAt(p[:len(p)/2&^(extent.PageSize-1)], off)
	case FaultTorn:
		// The device may only take more than a sector at once, so what was there is
		// written again. What lies past the end reads as zeros.
		mixed := extent.AlignedBytes(len(p))
		_, _ = f.File.ReadAt(mixed, off)
		if err := extent.Guard(func() { copy(mixed, p[:len(p)/2&^(SectorSize-1)]) }); err != nil {
			return 0, err
		}
		return f.File.WriteAt(mixed, off)
	case FaultFlip:
		flipped := extent.AlignedBytes(len(p))
		if err := extent.Guard(func() { copy(flipped, p) }); err != nil {
			return 0, err
		}
		flipBit(flipped, n)
		return f.File.WriteAt(flipped, off)
	}
	return f.File.WriteAt(p, off)
}

// Allocate allocates through the plan.
func (f *Faulty) Allocate(size int64) error {
	if _, _, err := f.next(OpAllocate); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

// Sync syncs through the plan.
func (f *Faulty) Sync() error {
	fault, _, err := f.next(OpSync)
	if err != nil || fault == FaultLost {
		return err
	}
	return f.File.Sync()
}

// flipBit inverts one bit of p, always the same one for the n-th operation.
func flipBit(p []byte, n int) {
	if len(p) == 0 {
		return
	}
	bit := rand.New(rand.NewPCG(uint64(n), 0)).IntN(8 * len(p))
	p[bit/8] ^= 1 << (bit % 8)
}

// Gate holds stalled operations back until the test releases them. One gate may
// serve many files. The zero Gate is shut.
type Gate struct {
	mu      sync.Mutex
	release chan struct{}
	waiting int
	open    bool
}

// Waiting returns how many operations are held back now.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// Release lets the operations that wait now go on; later ones wait again.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.releaseLocked()
}

// Open lets every operation through, now and later.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.releaseLocked()
}

// releaseLocked lets the waiting operations go on.
func (g *Gate) releaseLocked() {
	if g.release != nil {
		close(g.release)
	}
	g.release = nil
	g.waiting = 0
}

// wait returns after the next Release or Open, at once if the gate is open.
func (g *Gate) wait() {
	g.mu.Lock()
	if g.open {
		g.mu.Unlock()
		return
	}
	if g.release == nil {
		g.release = make(chan struct{})
	}
	release := g.release
	g.waiting++
	g.mu.Unlock()
	<-release
}

// FaultRates are the probabilities of the faults of each operation:
// rates[OpWrite][FaultTorn] of 0.01 tears one write in a hundred.
type FaultRates map[Op]map[Fault]float64

// faultsOf returns the faults that mean something for an operation.
func faultsOf(op Op) []Fault {
	switch op {
	case OpRead:
		return []Fault{FaultEIO, FaultENOSPC, FaultShort, FaultTorn, FaultStall, FaultFlip}
	case OpWrite:
		return []Fault{FaultEIO, FaultENOSPC, FaultShort, FaultTorn, FaultStall, FaultFlip, FaultLost}
	case OpAllocate:
		return []Fault{FaultEIO, FaultENOSPC, FaultStall}
	case OpSync:
		return []Fault{FaultEIO, FaultENOSPC, FaultStall, FaultLost}
	}
	return nil
}

// RandomPlan returns a Plan in which the seed, the operation and its number alone
// decide the fault. A run with the same operations has the same faults. Files with the
// same seed fail in step. The plan is safe for concurrent use.
func RandomPlan(seed uint64, rates FaultRates) (func(op Op, n int) Fault, error) {
	// Of a draw from 0 to 1, a fault gets the part that ends at upTo and begins where the fault
	// before it ends.
	var upTo [numOps][numFaults]float64
	for op, of := range rates {
		if op >= numOps {
			return nil, fmt.Errorf("fault rates: %s: want 0 to %d", op, numOps-1)
		}
		sum := 0.0
		for _, fault := range faultsOf(op) {
			sum += of[fault]
			upTo[op][fault] = sum
		}
		for fault, rate := range of {
			if !(rate >= 0 && rate <= 1) {
				return nil, fmt.Errorf("fault rates: %s of %s: %v, want 0 to 1", fault, op, rate)
			}
			if rate > 0 && (fault >= numFaults || upTo[op][fault] == 0) {
				return nil, fmt.Errorf("fault rates: %s means nothing for %s: want one of %v", fault, op, faultsOf(op))
			}
		}
		if sum > 1 {
			return nil, fmt.Errorf("fault rates: all of %s: %v, want at most 1", op, sum)
		}
	}
	return func(op Op, n int) Fault {
		draw := rand.New(rand.NewPCG(seed, uint64(n)<<8|uint64(op))).Float64()
		for _, fault := range faultsOf(op) {
			if draw < upTo[op][fault] {
				return fault
			}
		}
		return FaultNone
	}, nil
}
