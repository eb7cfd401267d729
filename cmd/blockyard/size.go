package main

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Size is a number of bytes as people write it on a command line: a whole
// number, alone for bytes or followed by KiB, MiB, GiB, TiB (powers of 1024)
// or KB, MB, GB, TB (powers of 1000).
type Size uint64

type sizeUnit struct {
	suffix string
	bytes  uint64
}

// sizeUnits lists the units from large to small, binary before decimal.
func sizeUnits() []sizeUnit {
	return []sizeUnit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	}
}

// UnmarshalText reads what String writes and every other accepted form.
func (s *Size) UnmarshalText(text []byte) error {
	digits, unit := string(text), uint64(1)
	for _, u := range sizeUnits() {
		if d, ok := strings.CutSuffix(digits, u.suffix); ok {
			digits, unit = d, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	high, low := bits.Mul64(n, unit)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return fmt.Errorf("size %q: want a whole number of bytes, or one followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB", text)
	case err != nil || high != 0:
		return fmt.Errorf("size %q: more than 2^64-1 bytes", text)
	}
	*s = Size(low)
	return nil
}

// String is the size in the largest binary unit that gives a whole number.
func (s Size) String() string {
	for _, u := range sizeUnits()[:4] {
		if s != 0 && uint64(s)%u.bytes == 0 {
			return strconv.FormatUint(uint64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}
