package index

import (
	"errors"
	"fmt"
)

// Options bound an Index. The zero value is ready for use.
type Options struct {
	// MaxBytes is the budget of the index's own memory; 0 means 8 GiB. Over it,
	// blocks that nobody has asked for lately leave, the ends of sequences first.
	// About two fifths are kept free for a directory of every block, which is made
	// when events no longer come in runs. The lists of who holds a run are not part
	// of what is planned for: they may exceed the budget by up to a quarter where
	// very many owners hold the same blocks, else by a few percent.
	MaxBytes int64
	// MaxOwners is how many workers and pools are kept; 0 means 1<<16.
	MaxOwners int
	// MaxParked is how many unknown parents blocks may wait for; 0 means 1<<16.
	MaxParked int
}

const (
	minBytes     = 128 << 10
	defaultBytes = 8 << 30
	maxOwnersCap = 1 << 24
	maxParkedCap = 1 << 28
)

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.MaxBytes != 0 && o.MaxBytes < minBytes {
		return fmt.Errorf("index max bytes: %d is neither 0 nor at least %d", o.MaxBytes, minBytes)
	}
	if o.MaxOwners < 0 || o.MaxOwners > maxOwnersCap {
		return fmt.Errorf("index max owners: %d is not in 0..%d", o.MaxOwners, maxOwnersCap)
	}
	if o.MaxParked < 0 || o.MaxParked > maxParkedCap {
		return fmt.Errorf("index max parked: %d is not in 0..%d", o.MaxParked, maxParkedCap)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBytes
	}
	if o.MaxOwners == 0 {
		o.MaxOwners = 1 << 16
	}
	if o.MaxParked == 0 {
		o.MaxParked = 1 << 16
	}
	return o
}

// ErrFull is returned when there are already Options.MaxOwners owners. What it
// refused is counted in Stats.Refused.
var ErrFull = errors.New("index is full")
