package config

import (
	"fmt"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// Published models with the numbers that KVBM arrives at.
func TestKnownModelsGetTheBlocksThatKVBMGivesThem(t *testing.T) {
	for _, c := range []struct {
		name                    string
		ranks                   uint64
		model                   Model
		gb                      string
		rankBytes, blocks, toks uint64
	}{
		{"Llama-3.1-8B", 1, Model{32, 2, 16, 1024, 2}, "100", 2_097_152, 47_683, 762_928},
		{"Llama-3.1-8B on 4 ranks", 4, Model{32, 2, 16, 256, 2}, "100", 524_288, 47_683, 762_928},
		{"Llama-3.1-70B on 8 ranks", 8, Model{80, 2, 16, 128, 2}, "500", 655_360, 95_367, 1_525_872},
		{"DeepSeek-V3 on 8 ranks, 8 copies", 8, Model{61, 1, 64, 576, 2}, "100", 4_497_408, 2_779, 177_856},
		{"DeepSeek-V3, one copy", 1, Model{61, 1, 64, 576, 2}, "100", 4_497_408, 22_235, 1_423_040},
		{"Llama-3.1-8B in 8 bits", 1, Model{32, 2, 16, 1024, 1}, "100", 1_048_576, 95_367, 1_525_872},
		{"Llama-3.1-8B, width by default", 1, Model{32, 2, 16, 1024, 0}, "100", 2_097_152, 47_683, 762_928},
	} {
		rankBytes, err := c.model.BlockBytes()
		if err != nil || rankBytes != c.rankBytes {
			t.Errorf("%s: block of %d bytes, %v, want %d", c.name, rankBytes, err, c.rankBytes)
		}
		e, _ := mustRead(t, "DYN_KVBM_CPU_CACHE_GB="+c.gb, "DYN_KVBM_DISK_CACHE_GB="+c.gb)
		host, disk, err := e.Blocks(rankBytes * c.ranks)
		if err != nil || host != c.blocks || disk != c.blocks || host*c.model.PageSize != c.toks {
			t.Errorf("%s: %d and %d blocks, %d tokens, %v, want %d, %d", c.name, host, disk, host*c.model.PageSize, err, c.blocks, c.toks)
		}
	}
}

// The formula in exact fractions, for any decimal that somebody may write.
func TestBlocksAreTheFloorOfTheDecimalSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nanos := rapid.Uint64Range(0, 1e15).Draw(t, "bytes") // up to 1 PB, exact in a float64
		block := rapid.Uint64Range(1, 1<<30).Draw(t, "block")
		text := new(big.Rat).SetFrac(new(big.Int).SetUint64(nanos), big.NewInt(bytesPerGB)).FloatString(9)
		e, _, err := FromEnviron([]string{"DYN_KVBM_CPU_CACHE_GB=" + text})
		if err != nil || e.Host.Bytes != nanos {
			t.Fatalf("%s GB: %d bytes, %v, want %d", text, e.Host.Bytes, err, nanos)
		}
		blocks, err := e.Host.Blocks(block)
		if want := nanos / block; want > maxBlocks || want == 0 && nanos > 0 {
			if err == nil {
				t.Fatalf("%s GB of %d bytes: %d blocks, want an error", text, block, blocks)
			}
		} else if err != nil || blocks != want {
			t.Fatalf("%s GB of %d bytes: %d blocks, %v, want %d", text, block, blocks, err, want)
		}
	})
}

func TestOverrideWinsOverSize(t *testing.T) {
	for _, c := range []struct{ size, blocks uint64 }{{0, 7}, {1, 7}, {1 << 40, 7}} {
		if n, err := (CacheSize{c.size, c.blocks}).Blocks(4096); n != 7 || err != nil {
			t.Errorf("%d bytes, override 7: %d blocks, %v", c.size, n, err)
		}
	}
}

func TestSizeBelowOneBlockIsAnErrorThatNamesTheVariable(t *testing.T) {
	e, _ := mustRead(t, "DYN_KVBM_DISK_CACHE_GB=0.000001")
	const want = "DYN_KVBM_DISK_CACHE_GB: cache size 1000 bytes: want 0 or at least one block of 4096 bytes"
	if _, _, err := e.Blocks(4096); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, _, err := e.Blocks(0); err == nil {
		t.Error("blocks of 0 bytes were accepted")
	}
}

// KVBM sizes tiers by one parser and decides on the bypass by another, which
// takes 0.5 for nothing.
func TestBypassAgreesWithTheSizesForAnyNumbers(t *testing.T) {
	for _, c := range []struct {
		hostGB, hostBlocks, diskGB, diskBlocks string
		want                                   bool
	}{
		{"", "", "", "", false},
		{"0", "0", "0", "0", false},
		{"", "", "100", "", true},
		{"", "", "0.5", "", true},
		{"", "", "", "10", true},
		{"0", "0", "100", "", true},
		{"0.0", "", " 0.5 ", "", true},
		{"0.5", "", "100", "", false},
		{"0.0000000001", "", "100", "", false},
		{"", "1", "100", "", false},
		{"100", "", "", "", false},
	} {
		e, _ := mustRead(t, "DYN_KVBM_CPU_CACHE_GB="+c.hostGB, "DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS="+c.hostBlocks,
			"DYN_KVBM_DISK_CACHE_GB="+c.diskGB, "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS="+c.diskBlocks)
		if got := e.ShouldBypassCPUCache(); got != c.want {
			t.Errorf("%+v: bypass %v", c, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		host, disk := rapid.Float64Range(0, 2).Draw(t, "host"), rapid.Float64Range(0, 2).Draw(t, "disk")
		e, _, err := FromEnviron([]string{fmt.Sprintf("DYN_KVBM_CPU_CACHE_GB=%v", host), fmt.Sprintf("DYN_KVBM_DISK_CACHE_GB=%v", disk)})
		if err != nil {
			t.Fatal(err)
		}
		hostBlocks, diskBlocks, err := e.Blocks(1)
		if err != nil || e.ShouldBypassCPUCache() != (diskBlocks > 0 && hostBlocks == 0) {
			t.Fatalf("host %v GB, disk %v GB: bypass %v with %d and %d blocks, %v", host, disk, e.ShouldBypassCPUCache(), hostBlocks, diskBlocks, err)
		}
	})
}
