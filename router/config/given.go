package config

import "net/url"

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
