package simulate

import (
	"reflect"
	"testing"
	"time"
)

// TestAThousandWorkers: they get 125 times the requests of eight workers, all of which end, and one seed has one
// result.
func TestAThousandWorkers(t *testing.T) {
	const workers = 1000
	s := generated(workers, 400*time.Millisecond)[0]
	for _, policy := range []string{"price", "llm-d"} {
		a := run(t, &s, policy, 1)
		if a.Unfinished != 0 || a.Failed != 0 || a.Requests < 600 {
			t.Errorf("%s: %d requests, %d unfinished, %d failed", policy, a.Requests, a.Unfinished, a.Failed)
		}
		if b := run(t, &s, policy, 1); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %+v and then %+v", policy, a, b)
		}
	}
}
