package agent

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// Every drop has a counter, and every counter of a pool can be seen.
func TestEveryNumberOfAPoolIsAMetric(t *testing.T) {
	shown := map[string]bool{}
	var s blockmgr.Stats
	for _, n := range slices.Concat(poolCounters(&s.Counters), nodeCounters(&s), poolGauges(&s)) {
		if shown[n.name] {
			t.Errorf("%s is shown twice", n.name)
		}
		shown[n.name] = true
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[blockmgr.Stats]()) {
		name := f.Tag.Get("json")
		if f.Type.Kind() != reflect.Struct && !shown[strings.Split(name, ",")[0]] {
			t.Errorf("%s is not a metric", name)
		}
	}
}
