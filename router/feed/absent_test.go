package feed

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestAbsentWorkersAreBounded: beyond the bound a worker that leaves is forgotten at once.
func TestAbsentWorkersAreBounded(t *testing.T) {
	a := newAbsentWorkers(time.Minute)
	for id := range kv.WorkerID(maxAbsent) {
		if !a.add(kv.Worker{ID: id}, 0) {
			t.Fatalf("worker %d finds no room", id)
		}
	}
	if a.add(kv.Worker{ID: maxAbsent}, 0) || a.len() != maxAbsent {
		t.Errorf("%d absent workers", a.len())
	}
	now := time.Unix(1000, 0)
	if over := a.expire(now); len(over) != 0 {
		t.Errorf("%d are over at once", len(over))
	}
	if over := a.expire(now.Add(2 * time.Minute)); len(over) != maxAbsent || a.len() != 0 {
		t.Errorf("%d are over, %d are left", len(over), a.len())
	}
}
