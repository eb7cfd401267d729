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

// Nothing that an engine's requests cost or lose is counted in secret.
func TestEveryNumberOfTheSessionsIsAMetric(t *testing.T) {
	// These have metrics of their own.
	wantShown[SessionStats](t, new(SessionStats).named(), "awaiting_exit", "former", "former_stuck")
}

// wantShown fails unless each number of T, by its name in JSON, is in shown once or
// is one of others.
func wantShown[T any](t *testing.T, shown []named, others ...string) {
	t.Helper()
	seen := map[string]bool{}
	for _, name := range others {
		seen[name] = true
	}
	for _, n := range shown {
		if seen[n.name] {
			t.Errorf("%T: %s is shown twice", *new(T), n.name)
		}
		seen[n.name] = true
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch f.Type.Kind() {
		case reflect.Uint64, reflect.Int, reflect.Bool:
			if !seen[name] {
				t.Errorf("%T: %s is not a metric", *new(T), name)
			}
		}
	}
}
