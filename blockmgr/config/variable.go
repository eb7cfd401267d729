package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Status says what becomes of a variable.
type Status uint8

const (
	// Read variables are part of Env.
	Read Status = iota
	// Deprecated variables once had an effect.
	Deprecated
	// Ignored variables are documented or declared by KVBM, which does not read
	// them either.
	Ignored
)

// String is "read", "deprecated" or "ignored".
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
	// Name is the variable's; a * at its end stands for any name that begins so.
	Name string
	// Accepts names the values that it takes; empty unless Status is Read.
	Accepts string
	// Default is what an absent variable means, as one would write it; empty for
	// nothing.
	Default string
	// Meaning says what it does or, unless Status is Read, why it does nothing.
	Meaning string
	// Status says whether it is part of Env.
	Status Status
	// Used says that the agent acts on it, and Effect how it does or why it does
	// not. Unless Status is Read it does not, and Meaning says why.
	Used   bool
	Effect string

	// blank is set when an empty value is not the same as none.
	blank bool
	// set parses a value into the variable's field. Nil unless Status is Read.
	set func(*Env, string) error
}

// variable makes a Variable that is read into a field.
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

// used is the variable when the agent does this with it.
func (v Variable) used(effect string) Variable {
	v.Used, v.Effect = true, effect
	return v
}

// unused is the variable when the agent takes it and, for this reason, does
// nothing with it.
func (v Variable) unused(why string) Variable {
	v.Used, v.Effect = false, why
	return v
}

// match lists the variable's names among values, sorted.
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

// read sets the variable's field to its value or its default.
func (v *Variable) read(e *Env, values map[string]string) error {
	value := v.Default
	if v.given(values) {
		value = values[v.Name]
	} else if value == "" {
		return nil
	}
	return v.set(e, value)
}
