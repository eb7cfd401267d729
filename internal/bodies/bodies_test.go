package bodies_test

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/bodies"
)

// One client's bodies leave room for those of another.
func TestClientsShareTheRoomForBodies(t *testing.T) {
	budget := bodies.New(100<<10, 1<<30, bodies.Counters{Refused: new(atomic.Uint64), Slow: new(atomic.Uint64)})
	read := func(client string, n int) (*bodies.Body, error) {
		b := budget.Wrap(strings.NewReader(strings.Repeat("x", bodies.Free+n)), client, nil)
		_, err := io.Copy(io.Discard, b)
		return b, err
	}
	for i := range 100 {
		if _, err := read("a", 1<<10); (err != nil) != (i >= 50) {
			t.Fatalf("body %d of the first client: %v", i, err)
		}
	}
	second, err := read("b", 20<<10)
	if err != nil {
		t.Errorf("the second client: %v", err)
	}
	if _, err := read("c", 10<<10); err != nil {
		t.Errorf("the third client: %v", err)
	}
	if _, err := read("b", 10<<10); !errors.Is(err, bodies.ErrBusy) {
		t.Errorf("the second client, beyond its share: %v", err)
	}
	second.Done()
	if _, err := read("b", 10<<10); err != nil {
		t.Errorf("the second client, when its first body is done: %v", err)
	}
}
