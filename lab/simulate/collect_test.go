package simulate

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// TestRequestsThatWaitedFinishInOneOrder: whichever goroutine comes first, requests without a booking too.
func TestRequestsThatWaitedFinishInOneOrder(t *testing.T) {
	scheduler, err := schedule.New(schedule.Options{Config: schedule.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		r := &router{scheduler: scheduler, modes: make(map[string]int), waiting: newWaiting(&policy.Policy{Queue: &queue.Options{}})}
		var got []string
		bookings := []uint64{0, 0, 1, 2}
		for _, k := range order {
			id := []string{"b", "c", "d", "a"}[k]
			r.waiting.decided <- decided{&decide.Query{ID: id}, decide.Match{Result: schedule.Result{Booking: bookings[k]}}, nil, func(kv.Worker) { got = append(got, id) }}
			r.waiting.count++
		}
		r.collect()
		r.close()
		if want := []string{"b", "c", "d", "a"}; !slices.Equal(got, want) {
			t.Errorf("decided in the order %v: finished %v, want %v", order, got, want)
		}
	}
}
