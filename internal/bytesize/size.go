package bytesize

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// Size is a number of bytes. Its text is a decimal number and at most one unit: KiB,
// MiB, GiB, TiB or Ki, Mi, Gi, Ti (powers of 1024), KB, MB, GB, TB (powers of 1000), or
// none for bytes. Parse cuts a fraction of a byte off.
type Size uint64

// Accepted describes the texts that Parse takes. It follows "want" in a message.
const Accepted = "bytes, or a number with KiB, MiB, GiB, TiB (or Ki, Mi, Gi, Ti), KB, MB, GB or TB, such as 1.5GiB"

// maxDigits bounds the text before the unit: more digits cannot matter.
const maxDigits = 40

var decimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

type unit struct {
	names []string // the first is the one that String writes
	bytes uint64
}

// units lists the binary units before the decimal ones, each from large to small.
var units = []unit{
	{[]string{"TiB", "Ti"}, 1 << 40}, {[]string{"GiB", "Gi"}, 1 << 30}, {[]string{"MiB", "Mi"}, 1 << 20}, {[]string{"KiB", "Ki"}, 1 << 10},
	{[]string{"TB"}, 1e12}, {[]string{"GB"}, 1e9}, {[]string{"MB"}, 1e6}, {[]string{"KB"}, 1e3},
}

// Parse returns the size in text, such as "1.5 GiB" or "4096". A fraction of a byte is cut off. The
// error quotes text and names what is accepted.
func Parse(text string) (Size, error) {
	digits, factor := cutUnit(text)
	if len(digits) > maxDigits || !decimal.MatchString(digits) {
		return 0, fmt.Errorf("size %.64q: want %s", text, Accepted)
	}
	value, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, fmt.Errorf("size %.64q: want %s", text, Accepted)
	}
	value.Mul(value, new(big.Rat).SetUint64(factor))
	whole := new(big.Int).Quo(value.Num(), value.Denom())
	if !whole.IsUint64() {
		return 0, fmt.Errorf("size %.64q: more than 2^64-1 bytes", text)
	}
	return Size(whole.Uint64()), nil
}

// cutUnit splits a size like "1.5 GiB" into its number and the bytes of its unit. A text without a
// unit is in bytes.
func cutUnit(text string) (digits string, bytes uint64) {
	for _, u := range units {
		for _, name := range u.names {
			if digits, ok := strings.CutSuffix(text, name); ok {
				return digits, u.bytes
			}
		}
	}
	return text, 1
}

// UnmarshalText implements encoding.TextUnmarshaler; see Parse.
func (s *Size) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*s = parsed
	}
	return err
}

// String returns the exact size in the unit that needs the fewest digits, with at most
// three behind the point. Parse reads it back.
func (s Size) String() string {
	best := strconv.FormatUint(uint64(s), 10)
	digits := len(best)
	for _, u := range units {
		value := new(big.Rat).SetFrac(new(big.Int).SetUint64(uint64(s)), new(big.Int).SetUint64(u.bytes))
		places, exact := value.FloatPrec()
		if uint64(s) < u.bytes || !exact || places > 3 {
			continue
		}
		if number := value.FloatString(places); len(number) < digits {
			best, digits = number+u.names[0], len(number)
		}
	}
	return best
}

// Rounded returns the size in the largest binary unit that is not larger than the size,
// with one digit behind the point unless the number is whole. It is for measured figures,
// such as free memory.
func (s Size) Rounded() string {
	for _, u := range units[:4] {
		if uint64(s) < u.bytes {
			continue
		}
		if uint64(s)%u.bytes == 0 {
			return strconv.FormatUint(uint64(s)/u.bytes, 10) + " " + u.names[0]
		}
		return fmt.Sprintf("%.1f %s", float64(s)/float64(u.bytes), u.names[0])
	}
	return strconv.FormatUint(uint64(s), 10) + " B"
}
