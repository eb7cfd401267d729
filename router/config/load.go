package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// ownPrefix begins Blockyard's variables, which win over Dynamo's.
const ownPrefix = "BLOCKYARD_"

// Sources are the inputs of Resolve. Each may be absent.
type Sources struct {
	// Document is the text of a JSON document. Name is its name in errors.
	Document []byte
	Name     string
	// Environ has NAME=value strings, such as os.Environ returns. The first of several
	// values of one name counts.
	Environ []string
	// Flags has the given flags: the setting's value by the flag's first name, without
	// dashes.
	Flags map[string]string
}

// Resolve applies the document, the environment and the flags to CommandDefault, in this
// order. It also returns the source of each value that is not a default.
//
// Blockyard's variable of a setting wins over other variables. Other variables of one
// setting must agree, unless a flag or Blockyard's variable sets it. A blank variable counts
// as not set. The error joins all bad values of the first source with any, or is Validate's.
func Resolve(from Sources) (*Loaded, error) {
	c := CommandDefault()
	l := newLayers(&c)
	if from.Document != nil {
		if err := l.document(from.Name, from.Document); err != nil {
			return nil, err
		}
	}
	if err := l.environ(from.Environ, from.Flags); err != nil {
		return nil, err
	}
	if err := l.flags(from.Flags); err != nil {
		return nil, err
	}
	if err := l.loadAware(); err != nil {
		return nil, err
	}
	if err := l.disaggObject(); err != nil {
		return nil, err
	}
	l.tune()
	if c.RouterPrefillLoadModel == LoadModelAIC {
		return nil, &NotYetError{Field: "router_prefill_load_model", Value: LoadModelAIC, Want: LoadModelNone + "; only an embedding program can supply a model"}
	}
	notices, err := c.Validate()
	if err != nil {
		return nil, err
	}
	return &Loaded{Config: c, Notices: append(l.weightNotices(), notices...), Given: l.given()}, nil
}

// layers applies sources of settings to a Config, one after another.
type layers struct {
	settings []Setting
	config   *Config
	// source has the source of each setting that some source sets. inLayer has the settings
	// of the current source.
	source  map[string]string
	inLayer map[string]bool
	// disabledCredit is the overlap score credit before an overlap score weight of 0 turned
	// the credit off, nil without one.
	disabledCredit *float64
	// replacedWeight tells, for a notice, which later source replaced an overlap score
	// weight. It is empty without one.
	replacedWeight string
}

func newLayers(c *Config) *layers {
	return &layers{settings: Settings(), config: c, source: make(map[string]string), inLayer: make(map[string]bool)}
}

// record records the source of a setting's value.
func (l *layers) record(s *Setting, source string) {
	l.source[s.Name], l.inLayer[s.Name] = source, true
}

// endLayer ends a source of settings: the document, the environment or the flags. It resolves
// overlap_score_weight, the older name of prefill_load_scale. A weight of 0 also turns
// overlap_score_credit off. A later source wins, whichever of the names it uses.
func (l *layers) endLayer() {
	c := l.config
	// Each is true if this source sets the setting.
	weight, scale, credit := l.inLayer["overlap_score_weight"], l.inLayer["prefill_load_scale"], l.inLayer["overlap_score_credit"]
	if credit {
		l.disabledCredit = nil
	} else if (weight || scale) && l.disabledCredit != nil {
		// This source replaces the weight that turned the credit off.
		c.OverlapScoreCredit, l.disabledCredit = *l.disabledCredit, nil
	}
	creditOff := c.OverlapScoreWeight != nil && *c.OverlapScoreWeight == 0
	switch {
	case weight:
		if creditOff { // a later source may want the credit back
			before := c.OverlapScoreCredit
			l.disabledCredit = &before
		}
		c.applyWeight()
		l.replacedWeight = ""
	case scale && c.OverlapScoreWeight != nil:
		l.replacedWeight = l.source["prefill_load_scale"] + " replaces it"
		c.OverlapScoreWeight = nil
	case credit && creditOff: // the weight of 0 must not turn this credit off
		l.replacedWeight = "it sets prefill_load_scale to 0"
		l.source["prefill_load_scale"] = l.source["overlap_score_weight"]
		c.OverlapScoreWeight = nil
	}
	clear(l.inLayer)
}

// weightNotices returns the notice of an overlap score weight that a later source replaced.
func (l *layers) weightNotices() []Notice {
	if l.replacedWeight == "" {
		return nil
	}
	return []Notice{{"overlap_score_weight", "is deprecated: " + l.replacedWeight}}
}

// flags sets the settings that flags give. given has the value of each flag by the first of
// the setting's names, without dashes. The error joins all unknown flags and bad values.
func (l *layers) flags(given map[string]string) error {
	var bad []error
	for _, flag := range slices.Sorted(maps.Keys(given)) {
		at := slices.IndexFunc(l.settings, func(s Setting) bool { return len(s.Flags) > 0 && s.Flags[0] == flag })
		if at < 0 {
			bad = append(bad, fmt.Errorf("--%s: no such flag", flag))
			continue
		}
		s := &l.settings[at]
		p := s.at(l.config)
		if !s.domain.set(p, given[flag]) {
			bad = append(bad, s.domain.invalid("--"+flag, p, given[flag]))
			continue
		}
		l.record(s, "--"+flag)
	}
	l.endLayer()
	return errors.Join(bad...)
}

// environ sets the settings that environment variables give; environ has NAME=value strings.
// It also checks the variables of settings that a flag sets, so that a bad value shows at
// once. Variables of such a setting need not agree. The error joins all bad values.
func (l *layers) environ(environ []string, flags map[string]string) error {
	values := environMap(environ)
	var bad []error
	for i := range l.settings {
		s := &l.settings[i]
		_, flagGiven := flags[s.Flags[0]]
		bad = append(bad, l.variables(s, values, flagGiven))
	}
	l.endLayer()
	return errors.Join(bad...)
}

// variables sets one setting from its environment variables. s.Env has their names, the one
// that wins first. values has the environment. Two variables with different values are an
// error, unless a flag or the setting's variable of Blockyard's own decides.
func (l *layers) variables(s *Setting, values map[string]string, flagGiven bool) error {
	var from, value string // the variable that wins, and its value in canonical form
	for _, name := range s.Env {
		text := values[name]
		if text == "" {
			continue
		}
		var c Config // scratch: a value that does not win is only checked
		p := s.at(&c)
		if !s.domain.set(p, text) {
			return s.domain.invalid(name, p, text)
		}
		read := s.Text(&c)
		switch {
		case from == "":
			from, value = name, read
		case read != value && !flagGiven && !strings.HasPrefix(from, ownPrefix):
			return fmt.Errorf("%s %.64q: contradicts %s %.64q, which is another name for it", name, text, from, values[from])
		}
	}
	if from == "" {
		return nil
	}
	s.domain.set(s.at(l.config), values[from])
	l.record(s, from)
	return nil
}

// environMap returns an environment of NAME=value strings as a map, with trimmed values. The
// first of several values of one name counts.
func environMap(environ []string) map[string]string {
	values := make(map[string]string, len(environ))
	for _, pair := range environ {
		name, value, ok := strings.Cut(pair, "=")
		if _, seen := values[name]; ok && !seen {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}

// preset returns the values that load_aware sets, by setting.
func preset() map[string]string {
	return map[string]string{
		"overlap_score_credit": "0", "shared_cache_multiplier": "0",
		"use_kv_events": "false", "use_remote_indexer": "false", "serve_indexer": "false", "router_assume_kv_reuse": "false",
		"router_track_active_blocks": "true", "router_track_prefill_tokens": "true",
		"shared_cache_type": SharedNone, "router_predicted_ttl_secs": "none",
	}
}

// matchesPreset reports whether all settings that load_aware sets have the values that it
// sets. A program may have built the Config without Resolve.
func (c *Config) matchesPreset() bool {
	settings := Settings()
	for name, value := range preset() {
		if find(settings, name).Text(c) != value {
			return false
		}
	}
	return true
}

// loadAware sets the settings of the preset if load_aware is on: a router that looks at load
// and at no cache. The error joins the settings that a source has set to another value.
func (l *layers) loadAware() error {
	if !l.config.LoadAware {
		return nil
	}
	var bad []error
	for name, value := range preset() {
		s := find(l.settings, name)
		if source := l.source[name]; source != "" && s.Text(l.config) != value {
			bad = append(bad, fmt.Errorf("%s %.64q: contradicts load_aware (%s), which sets %s to %s", source, s.Text(l.config), l.source["load_aware"], name, value))
		}
		s.domain.set(s.at(l.config), value)
	}
	slices.SortFunc(bad, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(bad...)
}

// tunedWeights returns the values that score_weights tuned sets, by setting.
func tunedWeights() map[string]string {
	var c schedule.Config
	c.Tune()
	return map[string]string{
		"prefill_load_scale": number(c.PrefillLoadScale), "host_cache_hit_weight": number(c.HostWeight), "disk_cache_hit_weight": number(c.DiskWeight),
	}
}

// tuned reports whether a setting of tunedWeights differs from its default.
func (c *Config) tuned() bool {
	settings := Settings()
	for name := range tunedWeights() {
		if s := find(settings, name); s.Text(c) != s.Default() {
			return true
		}
	}
	return false
}

// tune sets the settings of tunedWeights that no source sets, if score_weights asks for it. The older
// formula has a weight of its own, for which nothing was tuned.
func (l *layers) tune() {
	if l.config.ScoreWeights != WeightsTuned || l.config.CostFormula == FormulaOverlapWeight {
		return
	}
	for name, value := range tunedWeights() {
		if l.sourceOf(name) == "" {
			s := find(l.settings, name)
			s.domain.set(s.at(l.config), value)
			l.source[name] = "score_weights"
		}
	}
}

// Given is a setting with another value than its default.
type Given struct {
	// Name is the name of the setting. Value is its value in the syntax of flags, without a
	// password.
	Name, Value string
	// Source is a flag with its dashes, a variable, the document and its field, or another
	// setting that sets this one.
	Source string
}

// Loaded is the result of Resolve.
type Loaded struct {
	Config Config
	// Notices are those of Validate. Given has the settings that differ from CommandDefault,
	// in the order of Settings.
	Notices []Notice
	Given   []Given
}

// given returns the settings that differ from CommandDefault, each with its value and the
// source that set it, in the order of Settings. Log lines show them, so URLs have no password.
func (l *layers) given() []Given {
	var all []Given
	usual := CommandDefault()
	for i := range l.settings {
		s := &l.settings[i]
		value := s.Text(l.config)
		if value == s.Text(&usual) {
			continue
		}
		if s.domain.url {
			value = withoutPassword(value)
		}
		all = append(all, Given{s.Name, value, l.sourceOf(s.Name)})
	}
	return all
}

// sourceOf returns what set a setting that is not its default: a flag, a variable, a field of
// the document, or another setting that sets this one.
func (l *layers) sourceOf(name string) string {
	if _, preset := preset()[name]; preset && l.config.LoadAware {
		return "load_aware"
	}
	// A remaining weight has set both settings; see endLayer.
	if weight := l.config.OverlapScoreWeight; weight != nil &&
		(name == "prefill_load_scale" || name == "overlap_score_credit" && *weight == 0) {
		return "overlap_score_weight"
	}
	return l.source[name]
}

// withoutPassword formats a URL for the log.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Redacted()
}
