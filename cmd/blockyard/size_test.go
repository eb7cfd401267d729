package main

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSizeReadsEveryAcceptedForm(t *testing.T) {
	for text, want := range map[string]Size{
		"0":                    0,
		"4096":                 4096,
		"512KiB":               512 << 10,
		"64MiB":                64 << 20,
		"1GiB":                 1 << 30,
		"2TiB":                 2 << 40,
		"1KB":                  1000,
		"3MB":                  3e6,
		"1GB":                  1e9,
		"4TB":                  4e12,
		"007":                  7,
		"18446744073709551615": 1<<64 - 1,
		"16777215TiB":          16777215 << 40,
	} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: got %d, %v; want %d", text, s, err, want)
		}
	}
}

func TestBadSizeIsRefusedWithItsValue(t *testing.T) {
	for _, text := range []string{
		"", "MiB", "-1", "+1", "1.5GiB", "1 GiB", "1gib", "12QQ", "1Gi", "1B", "0x10", "1_000",
		"18446744073709551616", "16777216TiB", "1e9",
	} {
		s := Size(42)
		err := s.UnmarshalText([]byte(text))
		if err == nil || !strings.Contains(err.Error(), `size "`+text+`"`) {
			t.Errorf("%q: got %d, %v; want an error that quotes the value", text, s, err)
		}
		if s != 42 {
			t.Errorf("%q: refused, but the size changed to %d", text, s)
		}
	}
}

func TestSizeStringIsExactAndShort(t *testing.T) {
	for s, want := range map[Size]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 64 << 20: "64MiB", 3 << 40: "3TiB", 1<<30 + 1: "1073741825",
	} {
		if got := s.String(); got != want {
			t.Errorf("Size(%d).String() = %q, want %q", uint64(s), got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := Size(rapid.Uint64().Draw(t, "n") &^ (1<<rapid.IntRange(0, 50).Draw(t, "zeros") - 1))
		var got Size
		if err := got.UnmarshalText([]byte(want.String())); err != nil || got != want {
			t.Fatalf("%d → %q → %d, %v", uint64(want), want, uint64(got), err)
		}
	})
}
