package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Groups of settings, in the order of the table.
const (
	GroupScore  = "Weighing workers"
	GroupChoice = "Choosing a worker"
	GroupCache  = "Cache"
	GroupLoad   = "Load"
	GroupQueue  = "Queue and busy workers"
	GroupDisagg = "Disaggregated prefill"
	GroupStart  = "Start and server"
	GroupLater  = "Not supported yet"
)

// Setting describes a field of Config.
type Setting struct {
	// Name is the field's name in JSON. Group is one of the Groups.
	Name, Group string
	// Flags are its flags without dashes, Env its environment variables. The first is the
	// name to use; the others are older names and spellings. A switch also accepts --no-FLAG
	// for each flag.
	Flags, Env []string
	// Since is the first known version of Dynamo with the setting. A version after a dash is
	// the first without it. "Blockyard" marks a setting that Dynamo does not have.
	Since string
	// Live settings change while the router runs: see Config.WithLive. The others count at the start.
	Live bool
	// Meaning describes the effect. Its first sentence is the help of the flag.
	Meaning string

	domain domain
	// def is the default in the syntax of flags; empty means the zero value. commandDef, if
	// set, is the default on the command line.
	def, commandDef string
	// without says what the router does without a value; empty for a setting with a default.
	without string
	// at returns a pointer to the field.
	at func(*Config) any
	// noEffect returns why a value other than the default has no effect, or an empty string.
	// A setting without noEffect always has an effect.
	noEffect func(*Config) string
}

// WithLive returns c with the live settings of next. Both must be valid, and the caller validates the
// result: rules may hold between a live setting and another one.
func (c *Config) WithLive(next *Config) Config {
	out := *c
	settings := Settings()
	for i := range settings {
		if s := &settings[i]; s.Live {
			reflect.ValueOf(s.at(&out)).Elem().Set(reflect.ValueOf(s.at(next)).Elem())
		}
	}
	return out
}

// Accepts describes the accepted values.
func (s *Setting) Accepts() string { return s.domain.accepts(s.at(new(Config))) }

// Later names the values of Dynamo that are not supported yet, for the table of settings. It
// is empty for none. "any" stands for every value that turns the setting on.
func (s *Setting) Later() string {
	later := strings.Join(s.domain.unsupported, ", ")
	if later != anyValue {
		return later
	}
	// A setting with words supports these.
	if len(s.domain.words) > 0 {
		return "any but " + strings.Join(s.domain.words, ", ")
	}
	return "any"
}

// Default returns the default of embedding programs, in the syntax of flags.
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
	if def != "" && !s.domain.set(s.at(c), def) {
		panic(fmt.Sprintf("BUG: %s: default %q", s.Name, def))
	}
}

// Optional reports whether the setting has no value by default.
func (s *Setting) Optional() bool {
	return cmp.Or(s.commandDef, s.def) == "" && reflect.ValueOf(s.at(new(Config))).Elem().Kind() == reflect.Pointer
}

// Help returns the help text of the setting's flag: the first sentence of Meaning, and a note for a switch that is
// on by default and for a setting that has no value by default.
func (s *Setting) Help() string {
	help, _, more := strings.Cut(s.Meaning, ". ")
	if more {
		help += "."
	}
	if s.Switch() && s.Default() == "true" {
		help += " On by default."
	}
	if s.Optional() {
		help = strings.TrimSuffix(help, ".") + ". Default: " + cmp.Or(s.without, "none") + "."
	}
	return help
}

// Text returns the setting's value in c, in the syntax of flags.
func (s *Setting) Text(c *Config) string { return formatValue(s.at(c)) }

// whyNoEffect returns why the setting's value in c has no effect. It is empty for a value
// with an effect and for the default.
func (s *Setting) whyNoEffect(c *Config) string {
	if s.noEffect == nil || s.Text(c) == s.Default() {
		return ""
	}
	return s.noEffect(c)
}

// Switch reports whether the setting is a boolean.
func (s *Setting) Switch() bool {
	_, ok := s.at(new(Config)).(*bool)
	return ok
}

// Agree returns an error if two flags of the setting, which are names of one thing, have
// different values. given has the values of the given flags by name.
func (s *Setting) Agree(given map[string]string) error {
	var previous string
	for _, flag := range s.Flags {
		if _, ok := given[flag]; !ok {
			continue
		}
		if previous != "" && !s.same(given[previous], given[flag]) {
			return fmt.Errorf("--%s %.64q: contradicts --%s %.64q, which is another name for it", flag, given[flag], previous, given[previous])
		}
		previous = flag
	}
	return nil
}

// same reports whether two texts have the same value. It also returns true for an invalid
// text, which another check reports.
func (s *Setting) same(a, b string) bool {
	var c, d Config
	return !s.domain.set(s.at(&c), a) || !s.domain.set(s.at(&d), b) || s.Text(&c) == s.Text(&d)
}

// label names the setting in an error about no single source.
func (s *Setting) label() string {
	if len(s.Flags) == 0 {
		return s.Name
	}
	return s.Name + " (--" + s.Flags[0] + ")"
}

// Settings returns the table of all settings, by group. The caller owns the slice.
func Settings() []Setting {
	return slices.Concat(scoreSettings(), formSettings(), choiceSettings(), eventSettings(), cacheSettings(),
		loadSettings(), queueSettings(), disaggSettings(), startSettings(), laterSettings())
}

// find returns the setting with a name, nil for none.
func find(settings []Setting, name string) *Setting {
	at := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == name })
	if at < 0 {
		return nil
	}
	return &settings[at]
}

// weight returns the domain of a factor.
func weight() domain { return domain{lo: 0, hi: maxWeight} }

// share returns the domain of a fraction.
func share() domain { return domain{lo: 0, hi: 1} }

// seconds returns the domain of a duration.
func seconds() domain { return domain{lo: 0, hi: maxSeconds} }

// The functions below are values of Setting.noEffect.

// unless returns a noEffect that says why while condition is false: the setting has an
// effect only under the condition.
func unless(condition func(*Config) bool, why string) func(*Config) string {
	return func(c *Config) string {
		if condition(c) {
			return ""
		}
		return why
	}
}

// always returns why for every Config.
func always(why string) func(*Config) string { return func(*Config) string { return why } }

// firstReason returns a noEffect that asks several reasons in turn and returns the first one
// that is not empty.
func firstReason(reasons ...func(*Config) string) func(*Config) string {
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
	overlapWeightFormula = unless(func(c *Config) bool { return c.CostFormula != FormulaOverlapWeight }, "cost_formula is overlap_weight")
	prefillUntracked     = unless(func(c *Config) bool { return c.RouterTrackPrefillTokens },
		"router_track_prefill_tokens is off, which only a request may change")
	blocksUntracked = unless(func(c *Config) bool { return c.RouterTrackActiveBlocks }, "router_track_active_blocks is off")
	noQueue         = unless(func(c *Config) bool { return c.RouterQueueThreshold != nil || c.RouterPolicyConfig != nil }, "router_queue_threshold is not set")
	hasClasses      = unless(func(c *Config) bool { return c.RouterPolicyConfig == nil }, "router_policy_config has the classes of the queue")
	noOverlapCredit = unless(func(c *Config) bool { return c.overlapCredit() > 0 }, "overlap_score_credit is 0")
)

// inModes returns a noEffect for settings that have no effect in these router modes. The
// mode is the reason.
func inModes(modes ...string) func(*Config) string {
	return func(c *Config) string {
		if slices.Contains(modes, c.RouterMode) {
			return "router_mode is " + c.RouterMode
		}
		return ""
	}
}

// notKVMode, noTies and noDraws are the modes without costs, without a choice among equal
// workers, and without random numbers.
var (
	notKVMode = inModes(ModeRoundRobin, ModeRandom, ModePowerOfTwo, ModeLeastLoaded, ModeDirect)
	noTies    = inModes(ModeRoundRobin, ModeRandom, ModePowerOfTwo, ModeDirect)
	noDraws   = inModes(ModeRoundRobin, ModeDirect)
)

// draws reports whether the choice of a worker draws random numbers, so that the seed has an
// effect. Modes that never draw are covered by noDraws.
func (c *Config) draws() bool {
	switch c.RouterMode {
	case ModeRandom, ModePowerOfTwo:
		return true
	case ModeKV:
		return !c.FirstOfEqual || c.RouterTemperature > 0
	}
	return !c.FirstOfEqual
}

// noSharedCache is the noEffect of the credit for a shared cache: without a shared cache the
// credit has none. Operators who left the command's default need no notice.
func noSharedCache(c *Config) string {
	if usual := CommandDefault(); c.SharedCacheType == SharedNone && c.SharedCacheMultiplier != usual.SharedCacheMultiplier {
		return "shared_cache_type is none"
	}
	return ""
}
