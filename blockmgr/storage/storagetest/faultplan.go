package storagetest

import (
	"fmt"
	"math/rand/v2"
)

// FaultRates says how likely each fault is at an operation of each kind:
// rates[OpWrite][FaultTorn] of 0.01 tears one write in a hundred. What is not
// there is 0.
type FaultRates map[Op]map[Fault]float64

// faultsOf are the faults that mean something for an operation.
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

// RandomPlan is a Plan for a Faulty in which the seed, the operation and its
// number alone decide the fault, so that a run with the same operations has the
// same faults. Files that shall not fail in step need seeds of their own. It is
// safe for concurrent use.
func RandomPlan(seed uint64, rates FaultRates) (func(op Op, n int) Fault, error) {
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
