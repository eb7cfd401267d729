package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Override replaces settings for one request; nil keeps the router's. A request
// carries it as a JSON object with these names.
type Override struct {
	OverlapScoreCredit    *float64 `json:"overlap_score_credit,omitempty"`
	PrefillLoadScale      *float64 `json:"prefill_load_scale,omitempty"`
	RouterTemperature     *float64 `json:"router_temperature,omitempty"`
	AssumeKVReuse         *bool    `json:"assume_kv_reuse,omitempty"`
	TrackPrefillTokens    *bool    `json:"track_prefill_tokens,omitempty"`
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier,omitempty"`
	// OverlapScoreWeight is the older name of PrefillLoadScale and wins over it;
	// at 0 it turns OverlapScoreCredit off too.
	OverlapScoreWeight *float64 `json:"overlap_score_weight,omitempty"`
}

// overridden is a field of an Override.
type overridden struct {
	name string
	span span
	at   any
}

func (o *Override) fields() []overridden {
	return []overridden{
		{"overlap_score_credit", weight(), &o.OverlapScoreCredit},
		{"prefill_load_scale", weight(), &o.PrefillLoadScale},
		{"router_temperature", weight(), &o.RouterTemperature},
		{"assume_kv_reuse", span{}, &o.AssumeKVReuse},
		{"track_prefill_tokens", span{}, &o.TrackPrefillTokens},
		{"shared_cache_multiplier", share(), &o.SharedCacheMultiplier},
		{"overlap_score_weight", weight(), &o.OverlapScoreWeight},
	}
}

// UnmarshalJSON reads an object; null keeps a setting. The errors name each
// unknown field and each value that is out of range.
func (o *Override) UnmarshalJSON(data []byte) error {
	*o = Override{}
	if string(data) == "null" {
		return nil
	}
	found, err := entries(data)
	if err != nil {
		return fmt.Errorf("router_config_override: %w", err)
	}
	fields := o.fields()
	var bad []error
	for _, e := range found {
		at := slices.IndexFunc(fields, func(f overridden) bool { return f.name == e.name })
		if at < 0 {
			bad = append(bad, fmt.Errorf("router_config_override: %.64q: no such field", e.name))
			continue
		}
		if f := &fields[at]; !f.span.setJSON(f.at, e.raw) {
			bad = append(bad, fmt.Errorf("router_config_override: %w", f.span.wrong(f.name, f.at, shown(e.raw))))
		}
	}
	return errors.Join(bad...)
}

var _ json.Unmarshaler = (*Override)(nil)

// Validate reports the first value that is out of range, for an Override that was
// not read from JSON.
func (o *Override) Validate() error {
	for _, f := range o.fields() {
		if !f.span.check(f.at) {
			return f.span.wrong(f.name, f.at, text(f.at))
		}
	}
	return nil
}

// weights are the credit and the scale, by whichever name they were given.
func (o *Override) weights() (credit, scale *float64) {
	credit, scale = o.OverlapScoreCredit, o.PrefillLoadScale
	if w := o.OverlapScoreWeight; w != nil {
		scale = w
		if *w == 0 {
			credit = w
		}
	}
	return credit, scale
}
