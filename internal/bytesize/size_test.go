package bytesize

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSizeReadsWhatPeopleWrite(t *testing.T) {
	for text, want := range map[string]Size{
		"0":                    0,
		"4096":                 4096,
		"512KiB":               512 << 10,
		"64MiB":                64 << 20,
		"1GiB":                 1 << 30,
		"2TiB":                 2 << 40,
		"512Ki":                512 << 10,
		"64Mi":                 64 << 20,
		"1Gi":                  1 << 30,
		"2Ti":                  2 << 40,
		"1.5GiB":               3 << 29,
		"0.5Gi":                1 << 29,
		"0.1KiB":               102,
		"1KB":                  1000,
		"3MB":                  3e6,
		"2.5GB":                25e8,
		"4TB":                  4e12,
		"007":                  7,
		"18446744073709551615": 1<<64 - 1,
		"16777215TiB":          16777215 << 40,
	} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: got %d, %v; want %d", text, uint64(s), err, uint64(want))
		}
	}
}

func TestBadSizeIsRefusedWithItsValue(t *testing.T) {
	for _, text := range []string{
		"", "MiB", "-1", "+1", "1 GiB", "1gib", "12QQ", "1B", "1G", "0x10", "1_000", ".5GiB", "1.GiB", "1.5.5", "1/2", "Inf",
		"18446744073709551616", "16777216TiB", "1e9", "1.000000000000000000000000000000000000000000001GiB",
	} {
		s := Size(42)
		err := s.UnmarshalText([]byte(text))
		if err == nil || !strings.Contains(err.Error(), `size "`+text+`"`) {
			t.Errorf("%q: got %d, %v; want an error that quotes the value", text, uint64(s), err)
		}
		if s != 42 {
			t.Errorf("%q: refused, but the size changed to %d", text, uint64(s))
		}
	}
}

func TestSizePrintsExactlyWithTheFewestDigits(t *testing.T) {
	for s, want := range map[Size]string{
		0: "0", 1: "1", 512: "512", 1000: "1KB", 1024: "1KiB", 1025: "1025", 1500: "1.5KB", 1536: "1.5KiB", 64 << 20: "64MiB",
		3 << 29: "1.5GiB", 3 << 40: "3TiB", 5e8: "500MB", 5e9: "5GB", 1<<30 + 1: "1073741825",
	} {
		if got := s.String(); got != want {
			t.Errorf("Size(%d).String() = %q, want %q", uint64(s), got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := Size(rapid.Uint64().Draw(t, "n") &^ (1<<rapid.IntRange(0, 50).Draw(t, "zeros") - 1))
		if rapid.Bool().Draw(t, "decimal") {
			want = want / 1e6 * 1e6
		}
		if got, err := Parse(want.String()); err != nil || got != want {
			t.Fatalf("%d → %q → %d, %v", uint64(want), want, uint64(got), err)
		}
	})
}

func TestMeasuredSizeIsRounded(t *testing.T) {
	for s, want := range map[Size]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1<<30 + 1: "1.0 GiB", 25372061696: "23.6 GiB", 7 << 40: "7 TiB",
	} {
		if got := s.Rounded(); got != want {
			t.Errorf("Size(%d).Rounded() = %q, want %q", uint64(s), got, want)
		}
	}
}
