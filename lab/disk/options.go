package disk

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

const (
	// DefaultDuration is Options.Duration when it is zero.
	DefaultDuration = 20 * time.Second
	// DefaultBlocks is Options.Blocks when it is zero.
	DefaultBlocks = 10_000_000
	// DefaultRoundBytes is Options.RoundBytes when it is zero: many times the
	// caches, yet little enough to get through many rounds.
	DefaultRoundBytes = 512 << 20
	// DefaultHostDir is Options.HostDir when it is empty.
	DefaultHostDir = "/dev/shm"

	// maxRoundBytes leaves room for the generation words of the one extent that
	// a round lies in.
	maxRoundBytes = storage.MaxExtentBytes - 1<<20
	// minBlocks are the prompts that look-ups go round.
	minBlocks, maxBlocks = 2 * promptBlocks, 30_000_000
	maxBlockBytes        = 64 << 20
	maxDuration          = time.Hour
)

// Options say what to measure and where. The zero value of a field is the
// default that it names.
type Options struct {
	// Dir is where disk files go, on the device that is to be measured; default
	// the temporary directory. Something in memory is refused.
	Dir string
	// HostDir is where host extents go, default DefaultHostDir.
	HostDir string
	// Duration is how long the disk rounds of one block size go on, default
	// DefaultDuration. Copies and look-ups get parts of it.
	Duration time.Duration
	// Sizes are the block sizes, whole pages each, default DefaultSizes.
	Sizes []uint64
	// RoundBytes is how much one round moves at most, default DefaultRoundBytes.
	RoundBytes uint64
	// Blocks is how many blocks are registered for look-ups and pauses, default
	// DefaultBlocks.
	Blocks int
	// Copier is the command line of a process that calls ServeCopies on its
	// standard input and output. It must be set.
	Copier []string
	// Out is where the tables go as they come to be; it must be set.
	Out io.Writer
	// Log is where the manager's warnings go; nil for nowhere.
	Log *zap.Logger

	// noFio measures against the plain loop although fio may be there.
	noFio bool
}

// DefaultSizes are the block sizes that a run compares by default, in bytes.
func DefaultSizes() []uint64 { return []uint64{1 << 20, 2 << 20, 5 << 20, 8 << 20} }

// Validate checks every field's range; the error names the first bad one.
func (o *Options) Validate() error {
	d := o.withDefaults()
	if d.Duration < 0 || d.Duration > maxDuration {
		return fmt.Errorf("duration %s: want more than 0s, at most %s", d.Duration, maxDuration)
	}
	if d.RoundBytes < storage.PageSize*depth || d.RoundBytes > maxRoundBytes {
		return fmt.Errorf("round size %d: want %d to %d bytes", d.RoundBytes, storage.PageSize*depth, maxRoundBytes)
	}
	for _, size := range d.Sizes {
		if size == 0 || size%storage.PageSize != 0 || size > maxBlockBytes {
			return fmt.Errorf("block size %d: want a multiple of %d bytes, at most %d", size, storage.PageSize, maxBlockBytes)
		}
		if size*depth > d.RoundBytes {
			return fmt.Errorf("block size %d: want at most %d bytes, a round moves %d and at least %d blocks", size, d.RoundBytes/depth, d.RoundBytes, depth)
		}
	}
	if d.Blocks < minBlocks || d.Blocks > maxBlocks {
		return fmt.Errorf("blocks %d: want %d to %d", d.Blocks, minBlocks, maxBlocks)
	}
	if len(d.Copier) == 0 {
		return fmt.Errorf("copier %q: must be a command", d.Copier)
	}
	if d.Out == nil {
		return fmt.Errorf("output: must be set")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.HostDir == "" {
		o.HostDir = DefaultHostDir
	}
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if len(o.Sizes) == 0 {
		o.Sizes = DefaultSizes()
	}
	o.Sizes = slices.Clone(o.Sizes)
	if o.RoundBytes == 0 {
		o.RoundBytes = DefaultRoundBytes
	}
	if o.Blocks == 0 {
		o.Blocks = DefaultBlocks
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// roundBlocks is how many blocks of the size a round moves: as many as fit, the
// same number for each of the operations under way.
func (o *Options) roundBlocks(size uint64) int { return int(o.RoundBytes / size / depth * depth) }
