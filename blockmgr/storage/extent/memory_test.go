package extent

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCollapseGoesOnBehindARefusedHugePage: a huge page that the kernel refuses costs no other one,
// and memory without huge pages costs maxRefusals tries.
func TestCollapseGoesOnBehindARefusedHugePage(t *testing.T) {
	mem := make([]byte, 20*hugePage) // untouched: it takes no memory
	for _, c := range []struct {
		name    string
		refused []int
		tried   int
		err     string
	}{
		{"none", nil, 0, ""},
		{"one at first", []int{-1}, 20, ""},
		{"two", []int{-1, 0, 13}, 20, "huge pages: 18 of 20: cannot allocate memory"},
		{"seven in a row twice", []int{-1, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15}, 20, "huge pages: 6 of 20: cannot allocate memory"},
		{"eight in a row", []int{-1, 3, 4, 5, 6, 7, 8, 9, 10}, 11, "huge pages: 3 of 20: cannot allocate memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := -1 // the first try is for all of mem
			err := collapse(mem, func(part []byte) error {
				want := mem
				if page >= 0 {
					want = mem[page*hugePage:][:hugePage]
				}
				if len(part) != len(want) || &part[0] != &want[0] {
					t.Fatalf("try %d: %d bytes at %p, want %d at %p", page, len(part), &part[0], len(want), &want[0])
				}
				page++
				if slices.Contains(c.refused, page-1) {
					return unix.ENOMEM
				}
				return nil
			})
			if got := text(err); got != c.err || page != c.tried {
				t.Errorf("%q after %d huge pages, want %q after %d", got, page, c.err, c.tried)
			}
			if err != nil && !errors.Is(err, unix.ENOMEM) {
				t.Errorf("%v does not wrap the kernel's error", err)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
