package config

import (
	"strings"
	"testing"
)

// TestTunedWeightsAreDefaults: any source sets a weight to another value, under each of its names, and
// without score_weights the weights are Dynamo's.
func TestTunedWeightsAreDefaults(t *testing.T) {
	tuned := map[string]string{"score-weights": "tuned"}
	for name, tc := range map[string]struct {
		from              Sources
		scale, host, disk float64
		scaleFrom         string
	}{
		"Dynamo's":             {Sources{}, 1, 0.75, 0.25, ""},
		"Dynamo's by name":     {Sources{Environ: []string{"BLOCKYARD_ROUTER_SCORE_WEIGHTS=dynamo"}}, 1, 0.75, 0.25, ""},
		"tuned":                {Sources{Flags: tuned}, 8, 0.95, 0.5, "score_weights"},
		"a document's weights": {Sources{Document: []byte(`{"prefill_load_scale":1,"disk_cache_hit_weight":0.1}`), Flags: tuned}, 1, 0.95, 0.1, ""},
		"a variable":           {Sources{Environ: []string{"DYN_ROUTER_PREFILL_LOAD_SCALE=2"}, Flags: tuned}, 2, 0.95, 0.5, "DYN_ROUTER_PREFILL_LOAD_SCALE"},
		"the older name":       {Sources{Environ: []string{"DYN_KV_OVERLAP_SCORE_WEIGHT=3"}, Flags: tuned}, 3, 0.95, 0.5, "overlap_score_weight"},
		"the older name, 0, and a credit": {Sources{Document: []byte(`{"overlap_score_weight":0}`), Environ: []string{"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT=0.5"}, Flags: tuned},
			0, 0.95, 0.5, "overlap_score_weight"},
		"the older formula": {Sources{Flags: map[string]string{"score-weights": "tuned", "cost-formula": "overlap_weight"}}, 1, 0.75, 0.25, ""},
	} {
		loaded, err := Resolve(tc.from)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		s := loaded.Config.Schedule()
		if s.PrefillLoadScale != tc.scale || s.HostWeight != tc.host || s.DiskWeight != tc.disk {
			t.Errorf("%s: scale %v, host %v, disk %v", name, s.PrefillLoadScale, s.HostWeight, s.DiskWeight)
		}
		from := ""
		for _, g := range loaded.Given {
			if g.Name == "prefill_load_scale" {
				from = g.Source
			}
		}
		if from != tc.scaleFrom {
			t.Errorf("%s: the scale is from %q, want %q", name, from, tc.scaleFrom)
		}
	}
	for name, value := range tunedWeights() {
		if meaning := find(Settings(), "score_weights").Meaning; !strings.Contains(meaning, name+" to "+value) {
			t.Errorf("the meaning of score_weights lacks %s to %s", name, value)
		}
	}
}
