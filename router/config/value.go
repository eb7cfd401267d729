package config

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// Limits of settings. The first keeps every cost finite, the second every time
// within a time.Duration.
const (
	maxWeight  = 1e6
	maxSeconds = 1e9
	maxText    = 4096
)

// span says which values a setting takes. What it means depends on the type of
// the setting's field; one that does not apply is zero.
type span struct {
	// lo and hi bound numbers; above excludes lo itself.
	lo, hi float64
	above  bool
	// min and max bound whole numbers, and size takes units of bytes too.
	min, max uint64
	size     bool
	// words are all values of a word, and same other ways to write them.
	words []string
	same  map[string]string
	// later are values, as text has them, that are known and not there yet;
	// anyValue stands for all but nil.
	later []string
	// zeroOff lets a flag or variable turn a whole number off with 0.
	zeroOff bool
	// web wants the URL of an HTTP server.
	web bool
	// host wants the name or the address of a machine, without a port.
	host bool
}

const anyValue = "*"

// accepts names the values for the field that p points to, to follow "want".
func (s *span) accepts(p any) string {
	switch p.(type) {
	case *bool, **bool:
		return "true or false"
	case *float64, **float64:
		from := "a number, "
		if s.above {
			from += "above "
		}
		return s.orOff(p, from+number(s.lo)+" to "+number(s.hi))
	case *uint32, *uint64, **uint32, **uint64:
		if s.size {
			return s.orOff(p, fmt.Sprintf("a size such as 8GiB, %v to %v", bytesize.Size(s.min), bytesize.Size(s.max)))
		}
		return s.orOff(p, fmt.Sprintf("a whole number, %d to %d", s.min, s.max))
	case *string:
		return strings.Join(s.words, " or ")
	case **string:
		if s.web {
			return s.orOff(p, "an http or https URL")
		}
		if s.host {
			return s.orOff(p, "an IP address or a host name")
		}
		return s.orOff(p, fmt.Sprintf("text of 1 to %d bytes", maxText))
	}
	return "a JSON object"
}

// number is v without an exponent.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (s *span) orOff(p any, accepts string) string {
	switch p.(type) {
	case **float64, **uint32, **uint64, **string:
		if s.zeroOff {
			return accepts + ", or none or (flag and variable) 0"
		}
		return accepts + ", or none"
	}
	return accepts
}

// set reads a value as flags and variables have it.
func (s *span) set(p any, text string) bool {
	if strings.EqualFold(text, "none") || s.zeroOff && text == "0" {
		switch p := p.(type) {
		case **float64:
			*p = nil
			return true
		case **uint32:
			*p = nil
			return true
		case **uint64:
			*p = nil
			return true
		case **string:
			*p = nil
			return true
		}
	}
	return s.setValue(p, text)
}

// setValue reads a value that is not "none". Where it fails, *p is unchanged.
func (s *span) setValue(p any, text string) bool {
	switch p := p.(type) {
	case *bool:
		return store(p, text, parseBool)
	case **bool:
		return storeNew(p, text, parseBool)
	case *float64:
		return store(p, text, s.parseFloat)
	case **float64:
		return storeNew(p, text, s.parseFloat)
	case *uint32:
		return store(p, text, parseWhole[uint32](s))
	case **uint32:
		return storeNew(p, text, parseWhole[uint32](s))
	case *uint64:
		return store(p, text, parseWhole[uint64](s))
	case **uint64:
		return storeNew(p, text, parseWhole[uint64](s))
	case *string:
		return store(p, text, s.parseWord)
	case **string:
		return storeNew(p, text, s.parseText)
	}
	return false
}

func store[T any](p *T, text string, parse func(string) (T, bool)) bool {
	v, ok := parse(text)
	if ok {
		*p = v
	}
	return ok
}

func storeNew[T any](p **T, text string, parse func(string) (T, bool)) bool {
	v, ok := parse(text)
	if ok {
		*p = &v
	}
	return ok
}

func parseBool(text string) (value, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true", "on", "yes":
		return true, true
	case "0", "false", "off", "no":
		return false, true
	}
	return false, false
}

func (s *span) parseFloat(text string) (float64, bool) {
	// ParseFloat takes hexadecimal numbers, underscores, NaN and Inf too.
	if strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && v >= s.lo && v <= s.hi && !(s.above && v == s.lo)
}

func parseWhole[T uint32 | uint64](s *span) func(string) (T, bool) {
	return func(text string) (T, bool) {
		n, err := parseUint(text, s.size)
		return T(n), err == nil && n >= s.min && n <= s.max
	}
}

// parseUint reads a whole number; with size set, a number of bytes with a unit.
func parseUint(text string, size bool) (uint64, error) {
	if size {
		n, err := bytesize.Parse(text)
		return uint64(n), err
	}
	return strconv.ParseUint(text, 10, 64)
}

func (s *span) parseWord(text string) (string, bool) {
	if word, ok := s.same[text]; ok {
		text = word
	}
	return text, slices.Contains(s.words, text) || slices.Contains(s.later, text)
}

func (s *span) parseText(text string) (string, bool) {
	if text == "" || len(text) > maxText {
		return "", false
	}
	if s.host {
		return text, isHost(text)
	}
	if !s.web {
		return text, true
	}
	u, err := url.Parse(text)
	return text, err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// setJSON reads a value as a document has it: of the field's own type, and null
// for nil.
func (s *span) setJSON(p any, raw json.RawMessage) bool {
	text := string(raw)
	if text == "null" {
		return setNil(p)
	}
	switch p := p.(type) {
	case *bool, **bool:
		return (text == "true" || text == "false") && s.setValue(p, text)
	case *string, **string:
		var word string
		return json.Unmarshal(raw, &word) == nil && s.setValue(p, word)
	}
	// What is not a number has a character in front that no number has.
	return strings.ContainsAny(text[:1], "-0123456789") && s.setValue(p, text)
}

// setNil makes an optional field nil; no other can be.
func setNil(p any) bool {
	switch p := p.(type) {
	case **bool:
		*p = nil
	case **float64:
		*p = nil
	case **uint32:
		*p = nil
	case **uint64:
		*p = nil
	case **string:
		*p = nil
	default:
		return false
	}
	return true
}

// text is the value that p points to, as a flag would have it; nil is "none".
func text(p any) string {
	switch p := p.(type) {
	case *bool:
		return strconv.FormatBool(*p)
	case *float64:
		return strconv.FormatFloat(*p, 'g', -1, 64)
	case *uint32:
		return strconv.FormatUint(uint64(*p), 10)
	case *uint64:
		return strconv.FormatUint(*p, 10)
	case *string:
		return *p
	case **bool:
		return textOf(*p)
	case **float64:
		return textOf(*p)
	case **uint32:
		return textOf(*p)
	case **uint64:
		return textOf(*p)
	case **string:
		return textOf(*p)
	}
	return ""
}

func textOf[T any](p *T) string {
	if p == nil {
		return "none"
	}
	return text(p)
}

// check reports whether the value that p points to is one of the span's. Reading
// what is written makes that one rule with reading what is given.
func (s *span) check(p any) bool {
	value := text(p)
	switch p := p.(type) {
	case *float64:
		v := *p
		return s.setValue(&v, value)
	case *uint32:
		v := *p
		return s.setValue(&v, value)
	case *uint64:
		v := *p
		return s.setValue(&v, value)
	case *string:
		_, ok := s.parseWord(value)
		return ok
	case **float64:
		return *p == nil || s.check(*p)
	case **uint32:
		return *p == nil || s.check(*p)
	case **uint64:
		return *p == nil || s.check(*p)
	case **string:
		if *p == nil {
			return true
		}
		_, ok := s.parseText(value)
		return ok
	}
	return true
}

// wrong is the error of a value that is not one of the span's.
func (s *span) wrong(label string, p any, value string) error {
	return fmt.Errorf("%s %.64q: want %s", label, value, s.accepts(p))
}

// maxHost bounds the name of a machine in bytes.
const maxHost = 253

// isHost reports whether text is an IP address or may be the name of a machine.
func isHost(text string) bool {
	return net.ParseIP(text) != nil || len(text) <= maxHost && !strings.ContainsFunc(text, notInName)
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
}
