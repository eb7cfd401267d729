package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// syntax is how values of a variable are written. One description serves the
// parser, the error and the document.
type syntax[T any] struct {
	// accepts names the values, to follow "want".
	accepts string
	// blank is set when an empty value is one, rather than none.
	blank bool
	parse func(string) (T, bool)
}

// gigabytes is a size in decimal GB, which becomes bytes. The product of a
// decimal fraction and 1e9 can fall just short of a whole number of bytes, so it
// is rounded; what is above zero stays above zero.
func gigabytes() syntax[uint64] {
	return syntax[uint64]{
		accepts: fmt.Sprintf("GB, 0 to %.0f, decimal fractions allowed", float64(maxGB)),
		parse: func(s string) (uint64, bool) {
			gb, err := strconv.ParseFloat(s, 64)
			// ParseFloat takes hexadecimal numbers too.
			if err != nil || strings.ContainsAny(s, "xX_") || math.IsNaN(gb) || gb < 0 || gb > maxGB {
				return 0, false
			}
			if gb == 0 {
				return 0, true
			}
			return max(1, uint64(math.Round(gb*BytesPerGB))), true
		},
	}
}

// number is a whole number from lo to hi.
func number[T ~int | ~int32 | ~uint16 | ~uint32 | ~uint64](lo, hi uint64) syntax[T] {
	return syntax[T]{
		accepts: fmt.Sprintf("a whole number, %d to %d", lo, hi),
		parse: func(s string) (T, bool) {
			n, err := strconv.ParseUint(s, 10, 64)
			return T(n), err == nil && n >= lo && n <= hi
		},
	}
}

// port is a TCP port.
func port(lo uint64) syntax[uint16] {
	s := number[uint16](lo, math.MaxUint16)
	s.accepts = fmt.Sprintf("a port, %d to %d", lo, math.MaxUint16)
	return s
}

// seconds is a duration in whole seconds, of which a time.Duration holds 9.2e9.
func seconds(lo uint64) syntax[time.Duration] {
	n := number[uint64](lo, 1e9)
	return syntax[time.Duration]{
		accepts: fmt.Sprintf("seconds, %d to 1000000000", lo),
		parse: func(s string) (time.Duration, bool) {
			v, ok := n.parse(s)
			return time.Duration(v) * time.Second, ok
		},
	}
}

// text is any value that is not blank.
func text(accepts string) syntax[string] {
	return syntax[string]{accepts: accepts, parse: func(s string) (string, bool) { return s, true }}
}

// choice is one of a few words, of which each stands for a value.
func choice[T any](words []string, values []T) syntax[T] {
	return syntax[T]{
		accepts: strings.Join(words, " or "),
		parse: func(s string) (T, bool) {
			i := slices.Index(words, s)
			if i < 0 {
				var none T
				return none, false
			}
			return values[i], true
		},
	}
}

func isOn(s string) bool {
	return slices.Contains([]string{"1", "true", "on", "yes"}, strings.ToLower(s))
}

func isOff(s string) bool {
	return slices.Contains([]string{"0", "false", "off", "no"}, strings.ToLower(s))
}

// boolean is one of the words for yes and no, in any case.
func boolean() syntax[bool] {
	return syntax[bool]{
		accepts: "1, true, on, yes, 0, false, off or no",
		parse:   func(s string) (bool, bool) { return isOn(s), isOn(s) || isOff(s) },
	}
}

// presence is a switch that KVBM takes as on when the variable exists. It stays
// so for every value, none included, that does not plainly say off.
func presence() syntax[bool] {
	return syntax[bool]{
		accepts: "anything, also nothing, for on; 0, false, off or no for off",
		blank:   true,
		parse:   func(s string) (bool, bool) { return !isOff(s), true },
	}
}
