package config

import (
	"strings"
	"testing"
)

// C1 to C9 number what KVBM does as seen from outside, and what is expected of a
// program that takes its place: matching, offload evaluation, eviction,
// duplicates, the frequency filter, sizes and bypass, the wire, the consolidator,
// and failures. A test that holds one of them up has its number in its name. The
// ones here are C6 and, for the ports, C7.

const blockBytes = 1 << 20

func TestC6SizesDecideOnTheBypass(t *testing.T) {
	for _, c := range []struct {
		name       string
		environ    []string
		host, disk uint64
		bypass     bool
	}{
		{"a disk alone", []string{"DYN_KVBM_DISK_CACHE_GB=10"}, 0, 9536, true},
		{"half a GB is a host tier", []string{"DYN_KVBM_CPU_CACHE_GB=0.5", "DYN_KVBM_DISK_CACHE_GB=10"}, 476, 9536, false},
		{"half a GB is a disk tier", []string{"DYN_KVBM_DISK_CACHE_GB=0.5"}, 0, 476, true},
		{"a host alone", []string{"DYN_KVBM_CPU_CACHE_GB=10"}, 9536, 0, false},
		{"the number of blocks wins over GB",
			[]string{"DYN_KVBM_CPU_CACHE_GB=10", "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS=3", "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS=4"}, 3, 4, false},
		{"blanks around a number", []string{"DYN_KVBM_CPU_CACHE_GB= 10 "}, 9536, 0, false},
	} {
		e, _ := mustRead(t, c.environ...)
		host, disk, err := e.Blocks(blockBytes)
		if err != nil || host != c.host || disk != c.disk {
			t.Errorf("%s: %d and %d blocks, %v, want %d and %d", c.name, host, disk, err, c.host, c.disk)
		}
		if e.ShouldBypassCPUCache() != c.bypass || c.bypass != (disk > 0 && host == 0) {
			t.Errorf("%s: bypass %v with %d and %d blocks", c.name, e.ShouldBypassCPUCache(), host, disk)
		}
		if err := e.CheckTiers(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestC6NoTierAtAllIsRefusedWithGuidance(t *testing.T) {
	for _, environ := range [][]string{nil, {"DYN_KVBM_CPU_CACHE_GB=0", "DYN_KVBM_DISK_CACHE_GB=0"}} {
		e, _ := mustRead(t, environ...)
		err := e.CheckTiers()
		for _, name := range []string{hostGB, diskGB, hostBlocks, diskBlocks} {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%q: error %v does not name %s", environ, err, name)
			}
		}
	}
}
