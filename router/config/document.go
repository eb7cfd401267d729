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

// maxDocument bounds a document of settings in bytes, maxFields its fields: more
// than there are, so that each that is wrong can be named.
const (
	maxDocument = 1 << 20
	maxFields   = 256
)

// entry is a field of a document.
type entry struct {
	name string
	raw  json.RawMessage
}

// entries are the fields of a JSON object, in its order. Unlike encoding/json it
// refuses a field that is there twice, and lets nothing follow the object.
func entries(data []byte) ([]entry, error) {
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%d bytes: want at most %d", len(data), maxDocument)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("want a JSON object")
	}
	var found []entry
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		e := entry{name: t.(string)}
		if err := d.Decode(&e.raw); err != nil {
			return nil, fmt.Errorf("%.64q: %w", e.name, err)
		}
		if slices.ContainsFunc(found, func(f entry) bool { return f.name == e.name }) {
			return nil, fmt.Errorf("%.64q is given twice", e.name)
		}
		if len(found) == maxFields {
			return nil, fmt.Errorf("more than %d fields", maxFields)
		}
		found = append(found, e)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return found, nil
}

// ParseJSON reads a document: an object with the names of Settings, in which
// what is missing has its default. The errors name each unknown field and each
// value that is not one of its field's; Validate has the rest.
func ParseJSON(data []byte) (Config, error) {
	c := Default()
	l := newLayers(&c)
	if err := l.document("", data); err != nil {
		return Config{}, err
	}
	if err := l.loadAware(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// document puts the settings of a document on top. name is that of its source,
// empty for none.
func (l *layers) document(name string, data []byte) error {
	in := func(err error) error {
		if name == "" {
			return err
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	found, err := entries(data)
	if err != nil {
		return in(err)
	}
	var bad []error
	for _, e := range found {
		s := find(l.settings, e.name)
		if s == nil {
			bad = append(bad, in(fmt.Errorf("%.64q: no such field", e.name)))
			continue
		}
		p := s.at(l.config)
		if !s.span.setJSON(p, e.raw) {
			bad = append(bad, in(s.span.wrong(e.name, p, shown(e.raw))))
			continue
		}
		l.note(s, strings.TrimSpace(name+" "+e.name))
	}
	l.endLayer()
	return errors.Join(bad...)
}

// shown is a JSON value for an error: a string without its quotes.
func shown(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil && string(raw) != "null" {
		return s
	}
	return string(raw)
}

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
