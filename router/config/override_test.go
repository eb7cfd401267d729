package config

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestOverrideTakesTheRangesOfTheSettings: what may be asked for one request, and
// what is wrong with the rest.
func TestOverrideTakesTheRangesOfTheSettings(t *testing.T) {
	for document, want := range map[string]string{
		`{}`:   "",
		`null`: "",
		`{"overlap_score_credit":0,"prefill_load_scale":1000000,"router_temperature":0,"assume_kv_reuse":false,"track_prefill_tokens":true,"shared_cache_multiplier":1,"overlap_score_weight":null,"objective":null}`: "",
		`{"objective":"ttft"}`:                "",
		`{"objective":"fast"}`:                `objective "fast": want balanced or ttft or throughput, or none`,
		`{"objective":""}`:                    `objective "": want balanced or ttft or throughput, or none`,
		`{"objective":1}`:                     `objective "1": want balanced or ttft or throughput, or none`,
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
	fast := "fast"
	if err := (&Override{Objective: &fast}).Validate(); err == nil || err.Error() != `objective "fast": want balanced or ttft or throughput, or none` {
		t.Errorf("objective: %v", err)
	}
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
	if err := json.Unmarshal([]byte(`{"overlap_score_credit":0.5,"prefill_load_scale":3,"router_temperature":0.7,"shared_cache_multiplier":0.2,"objective":"throughput"}`), &o); err != nil {
		t.Fatal(err)
	}
	s := o.Schedule()
	if *s.OverlapCredit != 0.5 || *s.PrefillLoadScale != 3 || *s.OverlapWeight != 3 || *s.Temperature != 0.7 || *s.SharedMultiplier != 0.2 || *s.Objective != price.Throughput || s.Validate() != nil {
		t.Errorf("got %+v", s)
	}
	if s := new(Override).Schedule(); s.OverlapCredit != nil || s.PrefillLoadScale != nil || s.OverlapWeight != nil || s.Temperature != nil || s.SharedMultiplier != nil || s.Objective != nil {
		t.Errorf("an empty override became %+v", s)
	}
}

// TestObjectivesAreThoseOfPrices: in their order, as a setting and for one request.
func TestObjectivesAreThoseOfPrices(t *testing.T) {
	for i, name := range Objectives {
		c := read(t, fmt.Sprintf(`{"objective":%q}`, name))
		want := price.Objective(i)
		if got := c.Schedule().Objective; got != want || want.String() != name {
			t.Errorf("objective %s is scheduled as %s, and %s is number %d", name, got, want, i)
		}
		if s := (&Override{Objective: &name}).Schedule(); *s.Objective != want {
			t.Errorf("objective %s of a request is scheduled as %s", name, *s.Objective)
		}
	}
	if beyond := price.Objective(len(Objectives)); beyond <= price.Throughput {
		t.Errorf("no name for %s", beyond)
	}
}

// TestAnObjectiveNeedsAPrice: a request that asks for one is refused where weights decide.
func TestAnObjectiveNeedsAPrice(t *testing.T) {
	for _, tc := range []struct{ config, override, want string }{
		{`{"score":"price"}`, `{"objective":"ttft","router_temperature":0.5}`, ""},
		{`{"score":"price"}`, `{"overlap_score_credit":0}`, ""},
		{`{"score":"weights"}`, `{"prefill_load_scale":3}`, ""},
		{`{"score":"weights"}`, `{"objective":"ttft"}`, `router_config_override: objective "ttft": needs score price, and the router has weights`},
		{`{"score":"price"}`, `{"objective":"ttft","overlap_score_weight":2}`,
			`router_config_override: objective "ttft": excludes overlap_score_credit, prefill_load_scale and overlap_score_weight, with which weights decide`},
	} {
		c := read(t, tc.config)
		var o Override
		if err := json.Unmarshal([]byte(tc.override), &o); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := c.CheckOverride(&o); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s with %s: %q, want %q", tc.config, tc.override, got, tc.want)
		}
	}
	c := Default()
	if err := c.CheckOverride(nil); err != nil {
		t.Errorf("no override: %v", err)
	}
}
