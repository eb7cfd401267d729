package resource

import (
	"runtime"
	"sync"
	"testing"
	"weak"
)

// Memory is returned once a burst is over, and again only after new growth.
func TestTrimmer(t *testing.T) {
	const mib = 1 << 20
	var tr trimmer
	tr.trimmed(40*mib, 100*mib)
	for i, step := range []struct {
		held, allocated uint64
		due             bool
	}{
		{45 * mib, 101 * mib, false},  // quiet, and nothing to return
		{900 * mib, 900 * mib, false}, // the burst
		{900 * mib, 901 * mib, true},
		{900 * mib, 902 * mib, true}, // not trimmed yet
	} {
		if got := tr.due(step.held, step.allocated); got != step.due {
			t.Errorf("step %d: due is %v", i, got)
		}
	}
	tr.trimmed(800*mib, 903*mib)
	if tr.due(810*mib, 904*mib) {
		t.Error("live memory is trimmed again and again")
	}
}

// The runtime knows the metrics by their names.
func TestUsage(t *testing.T) {
	if held, allocated := usage(); held == 0 || allocated == 0 {
		t.Errorf("held %d, allocated %d", held, allocated)
	}
}

func TestReleaseEmptiesPools(t *testing.T) {
	var pool sync.Pool
	kept := func() weak.Pointer[[1 << 20]byte] {
		buffer := new([1 << 20]byte)
		pool.Put(buffer)
		return weak.Make(buffer)
	}()
	release()
	if kept.Value() != nil {
		t.Error("a pool has its buffer still")
	}
	runtime.KeepAlive(&pool)
}
