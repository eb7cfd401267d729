package config

import (
	"fmt"
	"math"
)

const (
	// BytesPerGB is what KVBM means by a GB: a decimal gigabyte.
	BytesPerGB = 1e9
	// MaxBlocks is the largest number of blocks of a tier: what a layout holds.
	MaxBlocks = math.MaxUint32
	// maxGB keeps a size below 2^63 bytes.
	maxGB = 1e9
)

// CacheSize is how large a tier is, summed over all ranks of an engine.
type CacheSize struct {
	// Bytes is the size, of which whole blocks are used.
	Bytes uint64
	// OverrideBlocks is the exact number of blocks, which wins over Bytes; 0 for
	// none.
	OverrideBlocks uint64
}

// Configured reports whether there is to be such a tier.
func (s CacheSize) Configured() bool { return s.Bytes > 0 || s.OverrideBlocks > 0 }

// Blocks is how many blocks the tier holds, where one block takes blockBytes on
// all ranks together; see Model.BlockBytes. It is 0 only when the tier is not
// configured: a size too small for one block is an error, so that no tier that
// Configured reports turns out to be missing.
func (s CacheSize) Blocks(blockBytes uint64) (uint64, error) {
	if blockBytes == 0 {
		return 0, fmt.Errorf("block size %d: want at least 1 byte", blockBytes)
	}
	n := s.OverrideBlocks
	if n == 0 {
		n = s.Bytes / blockBytes
	}
	if n == 0 && s.Configured() {
		return 0, fmt.Errorf("cache size %d bytes: want 0 or at least one block of %d bytes", s.Bytes, blockBytes)
	}
	if n > MaxBlocks {
		return 0, fmt.Errorf("cache size of %d blocks: want at most %d", n, uint64(MaxBlocks))
	}
	return n, nil
}

// Blocks is how many blocks the host and the disk tier hold; see
// CacheSize.Blocks. The error names the variable.
func (e *Env) Blocks(blockBytes uint64) (host, disk uint64, err error) {
	if host, err = e.Host.Blocks(blockBytes); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", hostGB, err)
	}
	if disk, err = e.Disk.Blocks(blockBytes); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", diskGB, err)
	}
	return host, disk, nil
}

// CheckTiers reports that there is to be neither a host nor a disk tier: KVBM
// does not start then. It is for configurations that come from the environment
// alone; the agent can be given its tiers otherwise.
func (e *Env) CheckTiers() error {
	if e.Host.Configured() || e.Disk.Configured() {
		return nil
	}
	return fmt.Errorf("%s 0 and %s 0: want more than 0 for the host tier, the disk tier or both, in GB or in blocks (%s, %s)",
		hostGB, diskGB, hostBlocks, diskBlocks)
}
