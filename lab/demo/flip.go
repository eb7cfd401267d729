package demo

import (
	"errors"
	"fmt"
	"os"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// flipByte inverts one bit of the nth of some blocks, each time at another place
// in it, and has the change written through to the device.
func flipByte(at cluster.Location, nth int) (err error) {
	f, err := os.OpenFile(at.Path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("flip a byte: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const stride = 1021 // a prime: first byte, then all over the block
	offset := at.Offset + int64(nth*stride)
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		return fmt.Errorf("flip a byte: %w", err)
	}
	b[0] ^= 1 << (nth % 8)
	if _, err := f.WriteAt(b[:], offset); err != nil {
		return fmt.Errorf("flip a byte: %w", err)
	}
	return f.Sync()
}
