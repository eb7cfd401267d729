package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// notYet is the error of a value that is one of the span's later ones, or nil.
func (s *span) notYet(label string, p any) error {
	value := text(p)
	if slices.Contains(s.words, value) {
		return nil
	}
	if slices.Contains(s.later, value) || value != "none" && slices.Contains(s.later, anyValue) {
		return &NotYetError{Field: label, Value: value, Want: s.instead(p)}
	}
	return nil
}

// instead is what to write in place of a value that is not there yet.
func (s *span) instead(p any) string {
	switch p.(type) {
	case *bool:
		return "false"
	case *string:
		return strings.Join(s.words, " or ")
	}
	return strings.Join(append([]string{"none"}, s.words...), " or ")
}

// NotYetError says that a value is known from Dynamo and that Blockyard does not
// have what it asks for.
type NotYetError struct {
	// Field names the setting, Value is what it was set to and Want what works.
	Field, Value, Want string
}

// Error names field, value and what to write instead.
func (e *NotYetError) Error() string {
	return fmt.Sprintf("%s %.64q: not yet; want %s", e.Field, e.Value, e.Want)
}

// IsNotYet reports whether err holds a NotYetError.
func IsNotYet(err error) bool {
	var later *NotYetError
	return errors.As(err, &later)
}
