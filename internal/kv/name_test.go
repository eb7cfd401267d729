package kv_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestLongNamesAreHashedOnce: a salt and its bounded form are one salt, so that it does
// not matter who bounds it.
func TestLongNamesAreHashedOnce(t *testing.T) {
	short := strings.Repeat("é", kv.MaxNameBytes/2)
	if got := kv.BoundedName(short); got != short {
		t.Errorf("a name of %d bytes becomes %q", len(short), got)
	}
	long := short + "s"
	want := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(long)))
	if got := kv.BoundedName(long); got != want || kv.BoundedName(got) != want {
		t.Errorf("got %q, then %q; want %q", got, kv.BoundedName(got), want)
	}
	if kv.LocalSeed(long, long) != kv.LocalSeed(want, want) {
		t.Error("a long name and its bounded form have different seeds")
	}
	if kv.LocalSeed("", long) == kv.LocalSeed("", long+"s") {
		t.Error("two long salts have one seed")
	}
}
