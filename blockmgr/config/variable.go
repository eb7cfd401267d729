package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Status says whether a variable is read.
type Status uint8

const (
	// Read variables are part of Env.
	Read Status = iota
	// Deprecated variables once had an effect.
	Deprecated
	// Ignored variables are documented or declared by KVBM, and no code reads them.
	Ignored
)

// String returns "read", "deprecated" or "ignored".
func (s Status) String() string {
	switch s {
	case Read:
		return "read"
	case Deprecated:
		return "deprecated"
	case Ignored:
		return "ignored"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Variable describes an environment variable.
type Variable struct {
	// Name is the variable's name. A * at its end stands for any name that begins so.
	Name string
	// Accepts names the allowed values; empty unless Status is Read.
	Accepts string
	// Default is the value of an absent variable; empty for none.
	Default string
	// Meaning says what the variable does or, unless Status is Read, why it does nothing.
	Meaning string
	// Status says whether the variable is part of Env.
	Status Status
	// Used says that the agent acts on the variable. Effect says how, or why not. Unless
	// Status is Read, Used is false and Meaning says why.
	Used   bool
	Effect string

	// blank is true when an empty value is a value.
	blank bool
	// set parses a value into the variable's field. Nil unless Status is Read.
	set func(*Env, string) error
}

// variable returns a Variable of status Read: s parses its values, def is its default as text, and
// field returns the field of Env that gets the value.
func variable[T any](name string, s syntax[T], def string, field func(*Env) *T, meaning string) Variable {
	return Variable{
		Name: name, Accepts: s.accepts, Default: def, Meaning: meaning, blank: s.blank,
		set: func(e *Env, text string) error {
			v, ok := s.parse(text)
			if !ok {
				return fmt.Errorf("%s %.64q: want %s", name, text, s.accepts)
			}
			*field(e) = v
			return nil
		},
	}
}

// used returns the variable with its effect on the agent.
func (v Variable) used(effect string) Variable {
	v.Used, v.Effect = true, effect
	return v
}

// unused returns the variable with the reason why the agent does nothing with it.
func (v Variable) unused(why string) Variable {
	v.Used, v.Effect = false, why
	return v
}

// match returns those names in values that are the variable's, sorted: its own name, or for a Name
// that ends in * each name that begins so.
func (v *Variable) match(values map[string]string) []string {
	prefix, family := strings.CutSuffix(v.Name, "*")
	if family {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(values)), func(name string) bool { return !strings.HasPrefix(name, prefix) })
	}
	if _, ok := values[v.Name]; ok {
		return []string{v.Name}
	}
	return nil
}

// given reports whether the variable has a value among values.
func (v *Variable) given(values map[string]string) bool {
	value, ok := values[v.Name]
	return ok && (value != "" || v.blank)
}

// read sets the variable's field in e to its value in values or to its default. The error names the
// variable, the value and the allowed values.
func (v *Variable) read(e *Env, values map[string]string) error {
	value := v.Default
	if v.given(values) {
		value = values[v.Name]
	} else if value == "" {
		return nil
	}
	return v.set(e, value)
}

// syntax describes the values of a variable, for the parser, the error and the document.
type syntax[T any] struct {
	// accepts names the values, after the word "want".
	accepts string
	// blank is true when an empty value is a value.
	blank bool
	parse func(string) (T, bool)
}

// gigabytes reads decimal GB as bytes. The product of a decimal fraction and 1e9 may fall
// just short of a whole number, so it is rounded. A size above zero stays above zero.
func gigabytes() syntax[uint64] {
	return syntax[uint64]{
		accepts: fmt.Sprintf("GB, 0 to %.0f, decimal fractions allowed", float64(maxGB)),
		parse: func(s string) (uint64, bool) {
			gb, err := strconv.ParseFloat(s, 64)
			// ParseFloat takes hexadecimal numbers too.
			if err != nil || strings.ContainsAny(s, "xX_") || math.IsNaN(gb) || gb < 0 || gb > maxGB {
				return 0, false
			}
			if gb == 0 {
				return 0, true
			}
			return max(1, uint64(math.Round(gb*bytesPerGB))), true
		},
	}
}

// number returns the syntax of a whole number from lo to hi.
func number[T ~int | ~int32 | ~uint16 | ~uint32 | ~uint64](lo, hi uint64) syntax[T] {
	return syntax[T]{
		accepts: fmt.Sprintf("a whole number, %d to %d", lo, hi),
		parse: func(s string) (T, bool) {
			n, err := strconv.ParseUint(s, 10, 64)
			return T(n), err == nil && n >= lo && n <= hi
		},
	}
}

// port returns a TCP port.
func port(lo uint64) syntax[uint16] {
	s := number[uint16](lo, math.MaxUint16)
	s.accepts = fmt.Sprintf("a port, %d to %d", lo, math.MaxUint16)
	return s
}

// seconds returns a duration in whole seconds. A time.Duration holds 9.2e9 of them.
func seconds(lo uint64) syntax[time.Duration] {
	n := number[uint64](lo, 1e9)
	return syntax[time.Duration]{
		accepts: fmt.Sprintf("seconds, %d to 1000000000", lo),
		parse: func(s string) (time.Duration, bool) {
			v, ok := n.parse(s)
			return time.Duration(v) * time.Second, ok
		},
	}
}

// text is any value that is not blank.
func text(accepts string) syntax[string] {
	return syntax[string]{accepts: accepts, parse: func(s string) (string, bool) { return s, true }}
}

// choice returns the syntax of one of a few words. words[i] stands for values[i].
func choice[T any](words []string, values []T) syntax[T] {
	return syntax[T]{
		accepts: strings.Join(words, " or "),
		parse: func(s string) (T, bool) {
			i := slices.Index(words, s)
			if i < 0 {
				var none T
				return none, false
			}
			return values[i], true
		},
	}
}

func isOn(s string) bool {
	return slices.Contains([]string{"1", "true", "on", "yes"}, strings.ToLower(s))
}

func isOff(s string) bool {
	return slices.Contains([]string{"0", "false", "off", "no"}, strings.ToLower(s))
}

// boolean returns the syntax of the words for yes and no, in upper or lower case.
func boolean() syntax[bool] {
	return syntax[bool]{
		accepts: "1, true, on, yes, 0, false, off or no",
		parse:   func(s string) (bool, bool) { return isOn(s), isOn(s) || isOff(s) },
	}
}

// presence returns the syntax of a switch. For KVBM the switch is on when the variable exists, with
// any value. Here the words that say off turn it off; every other value, the empty one too, is on.
func presence() syntax[bool] {
	return syntax[bool]{
		accepts: "anything, also nothing, for on; 0, false, off or no for off",
		blank:   true,
		parse:   func(s string) (bool, bool) { return !isOff(s), true },
	}
}
