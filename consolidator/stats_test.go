package consolidator

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var snakeCase = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// checkStats checks that every field of the struct that p points to has a JSON
// name, and gives every number a value of its own.
func checkStats(t *testing.T, p any) {
	t.Helper()
	v := reflect.ValueOf(p).Elem()
	seen := map[string]bool{}
	for i := range v.NumField() {
		name := strings.TrimSuffix(v.Type().Field(i).Tag.Get("json"), ",omitempty")
		if !snakeCase.MatchString(name) || seen[name] {
			t.Errorf("%s.%s: JSON name %q", v.Type(), v.Type().Field(i).Name, name)
		}
		seen[name] = true
		if v.Field(i).CanUint() {
			v.Field(i).SetUint(uint64(i + 1))
		}
	}
}

// checkSum checks that every number of twice is twice that of once.
func checkSum(t *testing.T, once, twice any) {
	t.Helper()
	a, b := reflect.ValueOf(once), reflect.ValueOf(twice)
	for i := range a.NumField() {
		if a.Field(i).CanUint() && b.Field(i).Uint() != 2*a.Field(i).Uint() {
			t.Errorf("%s.%s: twice %d is %d", a.Type(), a.Type().Field(i).Name, a.Field(i).Uint(), b.Field(i).Uint())
		}
	}
}

func TestStatsAreNamedAndAddUp(t *testing.T) {
	var rank, ranks RankStats
	checkStats(t, &rank)
	rank.Dropped = map[string]uint64{"remote": 2, "group": 5}
	rank.Repairing = true
	ranks.Add(rank)
	ranks.Add(RankStats{})
	ranks.Add(rank)
	checkSum(t, rank, ranks)
	if !ranks.Repairing || len(ranks.Dropped) != 2 || ranks.Dropped["remote"] != 4 || ranks.Dropped["group"] != 10 {
		t.Errorf("sum %+v", ranks)
	}
	if rank.Dropped["remote"] != 2 {
		t.Error("the sum keeps the map of what it was given")
	}
	for i := range maxRecentBad {
		rank.RecentBad = append(rank.RecentBad, BadEvent{Reason: string(rune('a' + i))})
	}
	ranks.Add(RankStats{RecentBad: []BadEvent{{Reason: "first"}}})
	ranks.Add(rank)
	if n := len(ranks.RecentBad); n != maxRecentBad || ranks.RecentBad[n-1].Reason != "p" {
		t.Errorf("%d bad events, the last one %+v", n, ranks.RecentBad[n-1])
	}
}
