package storage

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Fault is what a Faulty file does instead of an operation.
type Fault uint8

const (
	// FaultNone: the operation goes through.
	FaultNone Fault = iota
	// FaultEIO: nothing moves, EIO.
	FaultEIO
	// FaultENOSPC: nothing moves, ENOSPC.
	FaultENOSPC
	// FaultShort: half of the bytes move and the count says so.
	FaultShort
	// FaultTorn: half of a write reaches the file, but success is reported, as a
	// power loss does; of a read, the second half is zeros.
	FaultTorn
)

// Op names an operation of a File.
type Op uint8

const (
	// OpRead is ReadAt.
	OpRead Op = iota
	// OpWrite is WriteAt.
	OpWrite
	// OpAllocate is Allocate.
	OpAllocate
)

// Faulty is a File whose Plan decides, before each operation, what goes wrong.
// A Plan that blocks stalls the operation.
type Faulty struct {
	File
	// Plan is called with the operation and its number, counted from 1 per file
	// and operation. It may be called concurrently.
	Plan func(op Op, n int) Fault

	mu     sync.Mutex
	counts [3]int
}

var _ File = (*Faulty)(nil)

func (f *Faulty) next(op Op) Fault {
	f.mu.Lock()
	f.counts[op]++
	n := f.counts[op]
	f.mu.Unlock()
	return f.Plan(op, n)
}

func (fault Fault) err() error {
	switch fault {
	case FaultEIO:
		return unix.EIO
	case FaultENOSPC:
		return unix.ENOSPC
	}
	return nil
}

// ReadAt reads through the plan.
func (f *Faulty) ReadAt(p []byte, off int64) (int, error) {
	fault := f.next(OpRead)
	if err := fault.err(); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	switch fault {
	case FaultShort:
		return n / 2, nil
	case FaultTorn:
		clear(p[len(p)/2:])
	}
	return n, err
}

// WriteAt writes through the plan.
func (f *Faulty) WriteAt(p []byte, off int64) (int, error) {
	fault := f.next(OpWrite)
	if err := fault.err(); err != nil {
		return 0, err
	}
	switch fault {
	case FaultShort, FaultTorn:
		// Whole pages, so that O_DIRECT takes the half as well.
		n, err := f.File.WriteAt(p[:len(p)/2&^(PageSize-1)], off)
		if fault == FaultTorn && err == nil {
			n = len(p)
		}
		return n, err
	}
	return f.File.WriteAt(p, off)
}

// Allocate allocates through the plan.
func (f *Faulty) Allocate(size int64) error {
	if err := f.next(OpAllocate).err(); err != nil {
		return err
	}
	return f.File.Allocate(size)
}
