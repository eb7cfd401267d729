package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// ownPrefix begins Blockyard's variables, which win over Dynamo's.
const ownPrefix = "BLOCKYARD_"

// Sources are what Resolve puts together. All of them may be absent.
type Sources struct {
	// Document is the text of a JSON document, and Name what to call it.
	Document []byte
	Name     string
	// Environ has NAME=value strings, such as os.Environ returns; of two with one
	// name the first counts.
	Environ []string
	// Flags are the flags that were given: the setting's value by the flag's first
	// name, without dashes.
	Flags map[string]string
}

// Resolve returns the configuration of the command: CommandDefault, on top of it the
// document, the environment and the flags. It also returns where each value that is
// not a default comes from. Of several variables of one setting Blockyard's wins; two
// others that do not agree are an error unless a flag or Blockyard's variable decides.
// A blank variable counts as not set. The error joins all bad values of the first
// source that has any; otherwise it is Validate's, whose notices are returned too.
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
	if c.RouterPrefillLoadModel == LoadModelAIC {
		return nil, &NotYetError{Field: "router_prefill_load_model", Value: LoadModelAIC, Want: LoadModelNone + " where no program hands in a model"}
	}
	notices, err := c.Validate()
	if err != nil {
		return nil, err
	}
	return &Loaded{Config: c, Notices: append(l.weightNotices(), notices...), Given: l.given()}, nil
}

// FromEnviron is Default and on top of it an environment, by the rules of Resolve.
func FromEnviron(environ []string) (Config, error) {
	c := Default()
	l := newLayers(&c)
	if err := l.environ(environ, nil); err != nil {
		return Config{}, err
	}
	if err := l.loadAware(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// layers puts one source of settings on another.
type layers struct {
	settings []Setting
	config   *Config
	// source says where the value of a setting comes from, for those that are not
	// defaults; recent has those of the source at hand.
	source map[string]string
	recent map[string]bool
	// credit is the overlap score credit that a weight of 0 has turned off, nil when
	// none has.
	credit *float64
	// replaced says what is left of an overlap score weight that a stronger source has
	// replaced; empty when none has.
	replaced string
}

func newLayers(c *Config) *layers {
	return &layers{settings: Settings(), config: c, source: make(map[string]string), recent: make(map[string]bool)}
}

// note records where the value of a setting comes from.
func (l *layers) note(s *Setting, source string) {
	l.source[s.Name], l.recent[s.Name] = source, true
}

// endLayer has the older name of the prefill load scale do what it does, so that
// a later source may say otherwise.
func (l *layers) endLayer() {
	c := l.config
	weight, scale, credit := l.recent["overlap_score_weight"], l.recent["prefill_load_scale"], l.recent["overlap_score_credit"]
	if credit {
		l.credit = nil
	} else if (weight || scale) && l.credit != nil {
		// What turned it off holds no longer.
		c.OverlapScoreCredit, l.credit = *l.credit, nil
	}
	switch off := c.OverlapScoreWeight != nil && *c.OverlapScoreWeight == 0; {
	case weight:
		if before := c.OverlapScoreCredit; off {
			l.credit = &before
		}
		c.applyWeight()
		l.replaced = ""
	case scale && c.OverlapScoreWeight != nil:
		l.replaced = l.source["prefill_load_scale"] + " is believed instead"
		c.OverlapScoreWeight = nil
	case credit && off:
		l.replaced = "it sets prefill_load_scale to 0"
		c.OverlapScoreWeight = nil
	}
	clear(l.recent)
}

// weightNotices are those of an overlap score weight that is not in the result, because
// a stronger source says something else.
func (l *layers) weightNotices() []Notice {
	if l.replaced == "" {
		return nil
	}
	return []Notice{{"overlap_score_weight", "is deprecated: " + l.replaced}}
}

// flags puts flags on top. They are by their first names.
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
		if !s.span.set(p, given[flag]) {
			bad = append(bad, s.span.wrong("--"+flag, p, given[flag]))
			continue
		}
		l.note(s, "--"+flag)
	}
	l.endLayer()
	return errors.Join(bad...)
}

// environ puts the variables of an environment on top. Those of a setting that a
// flag decides are read too, so that a bad one does not lie in wait, but need not
// agree.
func (l *layers) environ(environ []string, flags map[string]string) error {
	values := byName(environ)
	var bad []error
	for i := range l.settings {
		s := &l.settings[i]
		_, decided := flags[s.Flags[0]]
		bad = append(bad, l.variables(s, values, decided))
	}
	l.endLayer()
	return errors.Join(bad...)
}

// variables sets a setting from its variables.
func (l *layers) variables(s *Setting, values map[string]string, decided bool) error {
	var from, value string
	for _, name := range s.Env {
		text := values[name]
		if text == "" {
			continue
		}
		var c Config
		p := s.at(&c)
		if !s.span.set(p, text) {
			return s.span.wrong(name, p, text)
		}
		read := s.Text(&c)
		switch {
		case from == "":
			from, value = name, read
		case read != value && !decided && !strings.HasPrefix(from, ownPrefix):
			return fmt.Errorf("%s %.64q: contradicts %s %.64q, which is another name for it", name, text, from, values[from])
		}
	}
	if from == "" {
		return nil
	}
	s.span.set(s.at(l.config), values[from])
	l.note(s, from)
	return nil
}

// byName is an environment as a map, with values trimmed.
func byName(environ []string) map[string]string {
	values := make(map[string]string, len(environ))
	for _, pair := range environ {
		name, value, ok := strings.Cut(pair, "=")
		if _, seen := values[name]; ok && !seen {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}

// preset is what load_aware sets, by setting.
func preset() map[string]string {
	return map[string]string{
		"overlap_score_credit": "0", "shared_cache_multiplier": "0",
		"use_kv_events": "false", "use_remote_indexer": "false", "serve_indexer": "false", "router_assume_kv_reuse": "false",
		"router_track_active_blocks": "true", "router_track_prefill_tokens": "true",
		"shared_cache_type": SharedNone, "router_predicted_ttl_secs": "none",
	}
}

// presetHolds reports whether all is as load_aware sets it.
func (c *Config) presetHolds() bool {
	settings := Settings()
	for name, value := range preset() {
		if find(settings, name).Text(c) != value {
			return false
		}
	}
	return true
}

// loadAware does what load_aware says, when it is on. What was asked for besides
// must not contradict it.
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
		s.span.set(s.at(l.config), value)
	}
	slices.SortFunc(bad, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(bad...)
}

// Given is a setting that is not what it is by default.
type Given struct {
	// Name is the setting's, Value as a flag would have it, without a password.
	Name, Value string
	// Source is where it comes from: a flag with its dashes, a variable, the document
	// and its field, or the other setting that sets it.
	Source string
}

// Loaded is what Resolve puts together.
type Loaded struct {
	Config Config
	// Notices are Validate's, Given what differs from CommandDefault, in the order of
	// Settings.
	Notices []Notice
	Given   []Given
}

// given are the settings that differ from the command's defaults.
func (l *layers) given() []Given {
	var all []Given
	usual := CommandDefault()
	for i := range l.settings {
		s := &l.settings[i]
		value := s.Text(l.config)
		if value == s.Text(&usual) {
			continue
		}
		if s.span.web {
			value = withoutPassword(value)
		}
		all = append(all, Given{s.Name, value, l.origin(s.Name)})
	}
	return all
}

// origin is where the value of a setting comes from that is not its default.
func (l *layers) origin(name string) string {
	if _, preset := preset()[name]; preset && l.config.LoadAware {
		return "load_aware"
	}
	// A weight that still is there has won over the two; see endLayer.
	if weight := l.config.OverlapScoreWeight; weight != nil &&
		(name == "prefill_load_scale" || name == "overlap_score_credit" && *weight == 0) {
		return "overlap_score_weight"
	}
	return l.source[name]
}

// withoutPassword is a URL as it may be logged.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Redacted()
}
