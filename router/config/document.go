package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxDocument bounds a document of settings, in bytes. maxFields bounds its fields. It
// exceeds the number of settings, so that errors can name several unknown fields.
const (
	maxDocument = 1 << 20
	maxFields   = 256
)

// field is a field of a document.
type field struct {
	name string
	raw  json.RawMessage
}

// parseFields returns the fields of a JSON object with their raw values, in their order.
// Unlike encoding/json it refuses a field that occurs twice, and text after the object.
func parseFields(data []byte) ([]field, error) {
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(data), maxDocument)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("want a JSON object")
	}
	var fields []field
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		e := field{name: t.(string)}
		if err := d.Decode(&e.raw); err != nil {
			return nil, fmt.Errorf("%.64q: %w", e.name, err)
		}
		if slices.ContainsFunc(fields, func(f field) bool { return f.name == e.name }) {
			return nil, fmt.Errorf("%.64q is given twice", e.name)
		}
		if len(fields) == maxFields {
			return nil, fmt.Errorf("more than %d fields", maxFields)
		}
		fields = append(fields, e)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the JSON object")
	}
	return fields, nil
}

// document sets the settings that a JSON document gives. name is the document's name in
// errors; it may be empty. The error joins all unknown fields and bad values.
func (l *layers) document(name string, data []byte) error {
	named := func(err error) error {
		if name == "" {
			return err
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	fields, err := parseFields(data)
	if err != nil {
		return named(err)
	}
	var bad []error
	for _, e := range fields {
		s := find(l.settings, e.name)
		if s == nil {
			bad = append(bad, named(fmt.Errorf("%.64q: no such field", e.name)))
			continue
		}
		p := s.at(l.config)
		if !s.domain.setJSON(p, e.raw) {
			bad = append(bad, named(s.domain.invalid(e.name, p, displayed(e.raw))))
			continue
		}
		l.record(s, strings.TrimSpace(name+" "+e.name))
	}
	l.endLayer()
	return errors.Join(bad...)
}

// disaggPrefix is what the members of conditional_disagg_config lack of the settings' names.
const disaggPrefix = "conditional_disagg_"

// disaggMember returns the setting that a member of conditional_disagg_config sets; nil for an
// unknown member.
func disaggMember(settings []Setting, member string) *Setting {
	switch member {
	case "policy", "eff_isl_threshold", "eff_isl_ratio_threshold", "prefill_busy_threshold", "decode_busy_threshold":
		return find(settings, disaggPrefix+member)
	}
	return nil
}

// disaggObject sets the settings that conditional_disagg_config gives. The error joins unknown
// members, bad values, and settings that a source has set to another value.
func (l *layers) disaggObject() error {
	const name = "conditional_disagg_config"
	if l.config.ConditionalDisaggConfig == nil {
		return nil
	}
	source := l.source[name]
	fields, err := parseFields([]byte(*l.config.ConditionalDisaggConfig))
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	var bad []error
	for _, e := range fields {
		s := disaggMember(l.settings, e.name)
		if s == nil {
			bad = append(bad, fmt.Errorf("%s: %.64q: no such field", source, e.name))
			continue
		}
		p := s.at(l.config)
		before := s.Text(l.config)
		switch own := l.source[s.Name]; {
		case !s.domain.setJSON(p, e.raw):
			bad = append(bad, fmt.Errorf("%s: %w", source, s.domain.invalid(e.name, p, displayed(e.raw))))
		case own == "":
			l.source[s.Name] = source + " " + e.name
		case s.Text(l.config) != before:
			bad = append(bad, fmt.Errorf("%s %.64q: contradicts %s, which sets %s to %s", own, before, source, s.Name, s.Text(l.config)))
		}
	}
	return errors.Join(bad...)
}

// matchesDisaggObject reports whether the settings have the values that conditional_disagg_config
// gives. A program may have built the Config without Resolve.
func (c *Config) matchesDisaggObject() bool {
	if c.ConditionalDisaggConfig == nil {
		return true
	}
	fields, err := parseFields([]byte(*c.ConditionalDisaggConfig))
	if err != nil {
		return false
	}
	settings := Settings()
	for _, e := range fields {
		s, given := disaggMember(settings, e.name), *c
		if s == nil || !s.domain.setJSON(s.at(&given), e.raw) || s.Text(&given) != s.Text(c) {
			return false
		}
	}
	return true
}

// displayed formats a JSON value for an error: a string without its quotes.
func displayed(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil && string(raw) != "null" {
		return s
	}
	return string(raw)
}

// Override replaces settings for one request. A nil field keeps the router's setting. A
// request carries the Override as a JSON object with these names.
type Override struct {
	OverlapScoreCredit    *float64 `json:"overlap_score_credit,omitempty"`
	PrefillLoadScale      *float64 `json:"prefill_load_scale,omitempty"`
	RouterTemperature     *float64 `json:"router_temperature,omitempty"`
	AssumeKVReuse         *bool    `json:"assume_kv_reuse,omitempty"`
	TrackPrefillTokens    *bool    `json:"track_prefill_tokens,omitempty"`
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier,omitempty"`
	// OverlapScoreWeight is the older name of PrefillLoadScale and wins over it. At 0 it also
	// turns OverlapScoreCredit off.
	OverlapScoreWeight *float64 `json:"overlap_score_weight,omitempty"`
	// Objective is one of Objectives. Only a price has one: see Config.CheckOverride.
	Objective *string `json:"objective,omitempty"`
}

// overrideField is a field of an Override. pointer points to the field.
type overrideField struct {
	name    string
	domain  domain
	pointer any
}

// fields returns the name, domain and value of each setting that a request may override.
func (o *Override) fields() []overrideField {
	return []overrideField{
		{"overlap_score_credit", weight(), &o.OverlapScoreCredit},
		{"prefill_load_scale", weight(), &o.PrefillLoadScale},
		{"router_temperature", weight(), &o.RouterTemperature},
		{"assume_kv_reuse", domain{}, &o.AssumeKVReuse},
		{"track_prefill_tokens", domain{}, &o.TrackPrefillTokens},
		{"shared_cache_multiplier", share(), &o.SharedCacheMultiplier},
		{"overlap_score_weight", weight(), &o.OverlapScoreWeight},
		{"objective", domain{words: Objectives}, &o.Objective},
	}
}

// UnmarshalJSON reads the settings that one request replaces from a JSON object. A field
// that is null or missing keeps the router's setting. The error joins all unknown fields and
// all values that are out of range.
func (o *Override) UnmarshalJSON(data []byte) error {
	*o = Override{}
	if string(data) == "null" {
		return nil
	}
	found, err := parseFields(data)
	if err != nil {
		return fmt.Errorf("router_config_override: %w", err)
	}
	fields := o.fields()
	var bad []error
	for _, e := range found {
		at := slices.IndexFunc(fields, func(f overrideField) bool { return f.name == e.name })
		if at < 0 {
			bad = append(bad, fmt.Errorf("router_config_override: %.64q: no such field", e.name))
			continue
		}
		if f := &fields[at]; !f.domain.setJSON(f.pointer, e.raw) {
			bad = append(bad, fmt.Errorf("router_config_override: %w", f.domain.invalid(f.name, f.pointer, displayed(e.raw))))
		}
	}
	return errors.Join(bad...)
}

var _ json.Unmarshaler = (*Override)(nil)

// Validate reports the first value that is out of range. UnmarshalJSON has already checked
// an Override from JSON.
func (o *Override) Validate() error {
	for _, f := range o.fields() {
		if !f.domain.check(f.pointer) {
			return f.domain.invalid(f.name, f.pointer, formatValue(f.pointer))
		}
	}
	return nil
}

// weights returns the overlap credit and the prefill load scale that the override sets; nil
// keeps the router's. OverlapScoreWeight, the older name, wins over PrefillLoadScale. A
// weight of 0 also turns the credit off.
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

// CheckOverride reports why the override of a request, which is valid, cannot work with c. o may be nil.
func (c *Config) CheckOverride(o *Override) error {
	if o == nil || o.Objective == nil {
		return nil
	}
	credit, scale := o.weights()
	switch {
	case c.Score != ScorePrice:
		return fmt.Errorf("router_config_override: objective %.64q: needs score price, and the router has %s", *o.Objective, c.Score)
	case credit != nil || scale != nil:
		return fmt.Errorf("router_config_override: objective %.64q: excludes overlap_score_credit, prefill_load_scale and overlap_score_weight, with which weights decide", *o.Objective)
	}
	return nil
}
