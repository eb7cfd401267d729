package config

import (
	"cmp"
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
	// Meaning says what the setting does. Its first sentence is the help of the flag.
	Meaning string

	span span
	// def is the default, as a flag would have it; empty for the zero value of the
	// field. commandDef replaces it on the command line where Dynamo's command
	// differs from its library.
	def, commandDef string
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

// Default returns the library's default, as a flag would have it.
func (s *Setting) Default() string {
	var c Config
	s.setDefault(&c, s.def)
	return s.Text(&c)
}

// CommandDefault returns the default of the flag, with units where the flag takes them.
func (s *Setting) CommandDefault() string {
	if d := cmp.Or(s.commandDef, s.def); d != "" {
		return d
	}
	return s.Default()
}

// setDefault sets the field of c to def. An empty def leaves the zero value.
func (s *Setting) setDefault(c *Config, def string) {
	if def != "" && !s.span.set(s.at(c), def) {
		panic(fmt.Sprintf("BUG: %s: default %q", s.Name, def))
	}
}

// Help returns the first sentence of Meaning, and says of a switch that it is on by
// default.
func (s *Setting) Help() string {
	help, _, more := strings.Cut(s.Meaning, ". ")
	if more {
		help += "."
	}
	if s.Switch() && s.Default() == "true" {
		help += " On by default."
	}
	return help
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

// A setting is idle when what it governs does not take place. The functions here say
// why, or nothing where it does.

// unless is why a setting is idle while its condition does not hold.
func unless(condition func(*Config) bool, why string) func(*Config) string {
	return func(c *Config) string {
		if condition(c) {
			return ""
		}
		return why
	}
}

func always(why string) func(*Config) string { return func(*Config) string { return why } }

// first is the first of several reasons.
func first(reasons ...func(*Config) string) func(*Config) string {
	return func(c *Config) string {
		for _, reason := range reasons {
			if why := reason(c); why != "" {
				return why
			}
		}
		return ""
	}
}

var (
	inTurn           = unless(func(c *Config) bool { return c.RouterMode != ModeRoundRobin }, "router_mode is round-robin")
	byOverlapWeight  = unless(func(c *Config) bool { return c.CostFormula != FormulaOverlapWeight }, "cost_formula is overlap_weight")
	prefillUntracked = unless(func(c *Config) bool { return c.RouterTrackPrefillTokens },
		"router_track_prefill_tokens is off, which only a request may change")
	blocksUntracked = unless(func(c *Config) bool { return c.RouterTrackActiveBlocks }, "router_track_active_blocks is off")
	nothingWaits    = unless(func(c *Config) bool { return c.RouterQueueThreshold != nil }, "router_queue_threshold is not set")
	nothingCached   = unless(func(c *Config) bool { return c.overlapCredit() > 0 }, "overlap_score_credit is 0")
	eventsTell      = unless(func(c *Config) bool { return !c.UseKVEvents }, "use_kv_events is on")
	nothingGuessed  = unless(func(c *Config) bool { return !c.UseKVEvents || c.RouterPredictedTTLSecs != nil },
		"use_kv_events is on and router_predicted_ttl_secs is not set")
)

// nothingShared is why the credit for a shared cache is idle. That the command has one
// by default needs no word.
func nothingShared(c *Config) string {
	if usual := CommandDefault(); c.SharedCacheType == SharedNone && c.SharedCacheMultiplier != usual.SharedCacheMultiplier {
		return "shared_cache_type is none"
	}
	return ""
}
