package config

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOverrideTakesTheRangesOfTheSettings: what may be asked for one request, and
// what is wrong with the rest.
func TestOverrideTakesTheRangesOfTheSettings(t *testing.T) {
	for document, want := range map[string]string{
		`{}`:   "",
		`null`: "",
		`{"overlap_score_credit":0,"prefill_load_scale":1000000,"router_temperature":0,"assume_kv_reuse":false,"track_prefill_tokens":true,"shared_cache_multiplier":1,"overlap_score_weight":null}`: "",
		`{"overlap_score_credit":1.5}`:        "",
		`{"overlap_score_credit":-0.1}`:       `overlap_score_credit "-0.1": want a number, 0 to 1000000, or none`,
		`{"prefill_load_scale":1000001}`:      `prefill_load_scale "1000001": want a number, 0 to 1000000, or none`,
		`{"router_temperature":"hot"}`:        `router_temperature "hot": want a number, 0 to 1000000, or none`,
		`{"assume_kv_reuse":1}`:               `assume_kv_reuse "1": want true or false`,
		`{"track_prefill_tokens":"false"}`:    `track_prefill_tokens "false": want true or false`,
		`{"shared_cache_multiplier":1.01}`:    `shared_cache_multiplier "1.01": want a number, 0 to 1, or none`,
		`{"overlap_score_weight":-1}`:         `overlap_score_weight "-1": want a number, 0 to 1000000, or none`,
		`{"host_cache_hit_weight":0.5}`:       `"host_cache_hit_weight": no such field`,
		`{"router_assume_kv_reuse":true}`:     `"router_assume_kv_reuse": no such field`,
		`[]`:                                  "want a JSON object",
		`{"a":1,"shared_cache_multiplier":2}`: "\"a\": no such field\nrouter_config_override: shared_cache_multiplier \"2\": want a number, 0 to 1, or none",
	} {
		var o Override
		err := json.Unmarshal([]byte(document), &o)
		if want == "" {
			if err != nil || o.Validate() != nil {
				t.Errorf("%s: %v, %v", document, err, o.Validate())
			}
			again, _ := json.Marshal(&o)
			var p Override
			if err := json.Unmarshal(again, &p); err != nil || !cmp.Equal(o, p) {
				t.Errorf("%s is written as %s: %v", document, again, err)
			}
			continue
		}
		if err == nil || err.Error() != "router_config_override: "+want {
			t.Errorf("%s: %v, want %s", document, err, want)
		}
	}
}

func TestOverrideThatWasNotParsedIsChecked(t *testing.T) {
	for _, v := range []float64{-1, math.NaN(), math.Inf(1), 2e6} {
		for name, o := range map[string]*Override{
			"overlap_score_credit": {OverlapScoreCredit: &v}, "prefill_load_scale": {PrefillLoadScale: &v}, "router_temperature": {RouterTemperature: &v},
			"shared_cache_multiplier": {SharedCacheMultiplier: &v}, "overlap_score_weight": {OverlapScoreWeight: &v},
		} {
			if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), name+` "`) {
				t.Errorf("%s of %v: %v", name, v, err)
			}
		}
	}
}

// TestOverrideReachesTheScheduler: each part arrives, and none is nothing.
func TestOverrideReachesTheScheduler(t *testing.T) {
	var none *Override
	if none.Schedule() != nil {
		t.Error("no override became one")
	}
	var o Override
	if err := json.Unmarshal([]byte(`{"overlap_score_credit":0.5,"prefill_load_scale":3,"router_temperature":0.7,"shared_cache_multiplier":0.2}`), &o); err != nil {
		t.Fatal(err)
	}
	s := o.Schedule()
	if *s.OverlapCredit != 0.5 || *s.PrefillLoadScale != 3 || *s.OverlapWeight != 3 || *s.Temperature != 0.7 || *s.SharedMultiplier != 0.2 || s.Validate() != nil {
		t.Errorf("got %+v", s)
	}
	if s := new(Override).Schedule(); s.OverlapCredit != nil || s.PrefillLoadScale != nil || s.OverlapWeight != nil || s.Temperature != nil || s.SharedMultiplier != nil {
		t.Errorf("an empty override became %+v", s)
	}
}
