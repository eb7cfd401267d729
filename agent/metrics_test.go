package agent

import (
	"reflect"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// Every drop has a counter, and every counter of a pool can be seen.
func TestEveryNumberOfAPoolIsAMetric(t *testing.T) {
	shown := map[string]bool{}
	var s blockmgr.Stats
	for _, n := range append(poolCounters(&s), poolGauges(&s)...) {
		if shown[n.name] {
			t.Errorf("%s is shown twice", n.name)
		}
		shown[n.name] = true
	}
	for f := range reflect.TypeFor[blockmgr.Stats]().Fields() {
		name := f.Tag.Get("json")
		if f.Type.Kind() != reflect.Struct && !shown[strings.Split(name, ",")[0]] {
			t.Errorf("%s is not a metric", name)
		}
	}
}
