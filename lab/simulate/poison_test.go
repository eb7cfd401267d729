package simulate

import (
	"reflect"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestPoison: all ways to spoil a message come, as often as the share says, and a wrong report has every number
// wrong.
func TestPoison(t *testing.T) {
	p := newPoison(0.3, 1)
	var seen [wrong + 1]int
	for range 10_000 {
		seen[p.draw()]++
	}
	for way, n := range seen {
		want := 1000
		if way == int(sound) {
			want = 7000
		}
		if n < want*9/10 || n > want*11/10 {
			t.Errorf("way %d: %d of 10,000 messages, want about %d", way, n, want)
		}
	}
	for _, owner := range []kv.Owner{kv.PoolOwner(7), kv.WorkerOwner(kv.Worker{ID: 7})} {
		l := kvevent.LoadReport{Owner: owner, Worker: kvevent.WorkerLoad{DeviceBlocksUsed: 500, Running: 500, Waiting: 500, CopyBytes: 500, CopyMicros: 500},
			Pool: kvevent.PoolLoad{BlockBytes: 500, DiskReadBytes: 500, DiskReadMicros: 500, ReadQueue: 500}}
		p.falsify(&l)
		for key, n := range l.Numbers() {
			if n != 0 && n != 5 && n != 50_000 {
				t.Errorf("owner %v: %s is %d after it was 500", owner, key, n)
			}
		}
	}
}

// TestPoisonedPriceFindsCaches: one seed has one result, all requests end, and price finds most of what it finds
// without poison.
func TestPoisonedPriceFindsCaches(t *testing.T) {
	pure := run(t, small(nil), "price", 1)
	s := small(func(s *Scenario) { s.Spoiled = 0.5 })
	a, b := run(t, s, "price", 1), run(t, s, "price", 1)
	if !reflect.DeepEqual(a, b) || reflect.DeepEqual(a, pure) {
		t.Errorf("%+v and then %+v, without poison %+v", a, b, pure)
	}
	if a.Unfinished != 0 || a.Failed != 0 || a.Requests < pure.Requests*9/10 || a.Served.Cached() < 0.9*pure.Served.Cached() {
		t.Errorf("%d requests, %d unfinished, %d failed, %.2f cached; without poison %d requests, %.2f cached",
			a.Requests, a.Unfinished, a.Failed, a.Served.Cached(), pure.Requests, pure.Served.Cached())
	}
}
