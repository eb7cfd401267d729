package reports

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestReportsCountOnceASecondAndTheOneBeforeByeToo(t *testing.T) {
	c := New()
	r := c.Reporter(kv.Worker{ID: 1}, &proto.Hello{Role: string(proto.RoleWorker)})
	start := time.Now()
	for n, s := range []struct {
		after   time.Duration
		counted uint64 // what the sum is then
	}{
		{0, 1}, {0, 2}, {0, 2}, {900 * time.Millisecond, 2}, // two at once
		{1100 * time.Millisecond, 5}, {1900 * time.Millisecond, 5}, {2050 * time.Millisecond, 7}, // then one a second
		{time.Minute, 8}, {time.Minute, 9}, {time.Minute, 9}, // a pause earns no more
	} {
		if err := r.Take(&proto.Stats{Loads: uint64(n + 1)}, start.Add(s.after)); err != nil {
			t.Fatal(err)
		}
		if list, _, _ := c.Snapshot(); list[0].Loads != s.counted {
			t.Errorf("after report %d the sum is %d, want %d", n+1, list[0].Loads, s.counted)
		}
	}
	if _, ignored, _ := c.Snapshot(); ignored != 4 {
		t.Errorf("%d reports were ignored, want 4", ignored)
	}
}

func TestSumsOfConnectorsAreBoundedAndThoseOfLiveOnesStay(t *testing.T) {
	c := New()
	now := time.Now()
	live := c.Reporter(kv.Worker{ID: math.MaxUint64}, &proto.Hello{Role: string(proto.RoleWorker)})
	if err := live.Take(&proto.Stats{Loads: math.MaxUint64}, now); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2 * maxConnectors) {
		r := c.Reporter(kv.Worker{ID: kv.WorkerID(i + 1)}, &proto.Hello{Role: string(proto.RoleScheduler)})
		if err := r.Take(&proto.Stats{Lookups: 1}, now.Add(time.Duration(i+1)*time.Second)); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	list, _, forgotten := c.Snapshot()
	if len(list) != maxConnectors || forgotten != maxConnectors+1 {
		t.Errorf("%d sums and %d forgotten, want %d and %d", len(list), forgotten, maxConnectors, maxConnectors+1)
	}
	last := list[len(list)-1]
	if last.Worker != fmt.Sprint(uint64(math.MaxUint64)) || last.Connected != 1 || last.Loads != math.MaxUint64 {
		t.Errorf("the live one's sum is %+v", last)
	}
}

// A counter may not go back behind a report that came too soon to count either.
func TestReportBelowAnIgnoredOneIsRefused(t *testing.T) {
	c := New()
	r := c.Reporter(kv.Worker{ID: 1}, &proto.Hello{Role: string(proto.RoleScheduler)})
	now := time.Now()
	for _, n := range []uint64{1, 2, 9} { // the third is ignored
		if err := r.Take(&proto.Stats{Loads: n}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Take(&proto.Stats{Loads: 3}, now); err == nil {
		t.Error("3 after 9 was taken")
	}
	if err := r.Take(&proto.Stats{Loads: 10}, now.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if list, _, _ := c.Snapshot(); list[0].Loads != 10 {
		t.Errorf("the sum is %d, want 10", list[0].Loads)
	}
}

// Where more connectors live than sums are kept, each that reports is seen again.
func TestReportsOfALiveConnectorAreNotLost(t *testing.T) {
	c := New()
	now := time.Now()
	var all []*Reporter
	for i := range uint64(maxConnectors + 1) {
		r := c.Reporter(kv.Worker{ID: kv.WorkerID(i + 1)}, &proto.Hello{Role: string(proto.RoleScheduler)})
		if err := r.Take(&proto.Stats{Lookups: 1}, now.Add(time.Duration(i)*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if err := all[0].Take(&proto.Stats{Lookups: 5}, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if list, _, forgotten := c.Snapshot(); list[0].Worker != "1" || list[0].Lookups != 5 || list[0].Connected != 1 || forgotten != 2 {
		t.Errorf("the first is %+v, %d are forgotten", list[0], forgotten)
	}
	for _, r := range all {
		r.Close()
	}
	list, _, _ := c.Snapshot()
	for i := range list {
		if list[i].Connected != 0 {
			t.Errorf("worker %s has %d connections after the end", list[i].Worker, list[i].Connected)
		}
	}
}
