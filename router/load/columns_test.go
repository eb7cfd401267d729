package load

import (
	"testing"
	"time"
)

// TestReadingAllocatesNothing: decisions read the loads, and are many.
func TestReadingAllocatesNothing(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("a", worker1, 10, time.Second, 1, 2, 3)
	f.add("b", worker2, 10, 1, 2, 4)
	sequence, dst := hashes(1, 2, 3, 4), make([]Shared, 0, 2)
	if n := testing.AllocsPerRun(100, func() {
		f.Align(f.members)
		f.Columns()
		dst = f.Shared(dst[:0], sequence)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
