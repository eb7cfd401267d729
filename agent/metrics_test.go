package agent

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
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

// Every drop of the events over HTTP can be seen.
func TestEveryNumberOfTheHTTPFeedsIsAMetric(t *testing.T) {
	shown := map[string]bool{}
	for _, n := range httpCounters(new(httpfeed.Stats)) {
		if shown[n.name] {
			t.Errorf("%s is shown twice", n.name)
		}
		shown[n.name] = true
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[httpfeed.FeedStats]()) {
		if name := f.Tag.Get("json"); !shown[name] {
			t.Errorf("%s is not a metric", name)
		}
	}
}
