package config

import (
	"fmt"
	"slices"
	"strings"
)

// Groups of settings, in the order of the table.
const (
	GroupScore  = "Weighing workers"
	GroupChoice = "Choosing one"
	GroupCache  = "What is cached"
	GroupLoad   = "Load"
	GroupQueue  = "Queue and busy workers"
	GroupStart  = "Start and server"
	GroupLater  = "Known, not there yet"
)

// Setting describes a field of Config.
type Setting struct {
	// Name is the field's in JSON, Group one of the Groups.
	Name, Group string
	// Flags are its flags without dashes, Env its environment variables: first
	// the name to use, then older ones and other spellings. A switch takes
	// --no-FLAG for each of its flags too.
	Flags, Env []string
	// Since is the version of Dynamo that had it first, as far as is known; a
	// version behind a dash is the first without it. "Blockyard" is ours alone.
	Since string
	// Meaning says in sentences what it does here.
	Meaning string

	span span
	// at is a pointer to the field.
	at func(*Config) any
	// idle says why a value other than the default does nothing; empty when it
	// does something. Nil always does.
	idle func(*Config) string
}

// Accepts names the values that it takes.
func (s *Setting) Accepts() string { return s.span.accepts(s.at(new(Config))) }

// Later names the values that are known and not there yet, empty for none; "any"
// stands for all that turn it on.
func (s *Setting) Later() string {
	later := strings.Join(s.span.later, ", ")
	if later != anyValue {
		return later
	}
	if len(s.span.words) > 0 {
		return "any but " + strings.Join(s.span.words, ", ")
	}
	return "any"
}

// Default is what an absent setting means, as a flag would have it.
func (s *Setting) Default() string {
	c := Default()
	return s.Text(&c)
}

// Text is the setting's value in c, as a flag would have it.
func (s *Setting) Text(c *Config) string { return text(s.at(c)) }

// idles says why the value that the setting has in c does nothing; empty when it does
// something or is the default.
func (s *Setting) idles(c *Config) string {
	if s.idle == nil || s.Text(c) == s.Default() {
		return ""
	}
	return s.idle(c)
}

// Switch reports whether it is on or off.
func (s *Setting) Switch() bool {
	_, ok := s.at(new(Config)).(*bool)
	return ok
}

// Agree reports, as an error, two of the setting's flags that do not say the same. said
// has the values of flags by their names.
func (s *Setting) Agree(said map[string]string) error {
	var former string
	for _, flag := range s.Flags {
		if _, ok := said[flag]; !ok {
			continue
		}
		if former != "" && !s.same(said[former], said[flag]) {
			return fmt.Errorf("--%s %.64q: contradicts --%s %.64q, which is another name for it", flag, said[flag], former, said[former])
		}
		former = flag
	}
	return nil
}

// same reports whether two texts are one value. Those that are none are for others to
// complain of.
func (s *Setting) same(a, b string) bool {
	var c, d Config
	return !s.span.set(s.at(&c), a) || !s.span.set(s.at(&d), b) || s.Text(&c) == s.Text(&d)
}

// label names the setting in an error that no source can be blamed for.
func (s *Setting) label() string {
	if len(s.Flags) == 0 {
		return s.Name
	}
	return s.Name + " (--" + s.Flags[0] + ")"
}

// Settings is the table of all settings, by group. The caller owns the slice.
func Settings() []Setting {
	return slices.Concat(scoreSettings(), formSettings(), choiceSettings(), eventSettings(), cacheSettings(),
		loadSettings(), queueSettings(), startSettings(), laterSettings(), disaggSettings())
}

// find is the setting of a field.
func find(settings []Setting, name string) *Setting {
	at := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
	if at < 0 {
		return nil
	}
	return &settings[at]
}

// weight is the span of a factor without a natural limit, share that of one from
// nothing to all.
func weight() span { return span{lo: 0, hi: maxWeight} }
func share() span  { return span{lo: 0, hi: 1} }

// seconds is the span of a time.
func seconds() span { return span{lo: 0, hi: maxSeconds} }
