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

// Limits of settings. maxWeight keeps every cost finite. maxSeconds fits into a
// time.Duration.
const (
	maxWeight  = 1e6
	maxSeconds = 1e9
	maxText    = 4096
)

// domain is the set of values that a setting accepts. The type of the setting's field
// decides which fields of the domain apply.
type domain struct {
	// lo and hi bound numbers. exclusiveLow excludes lo itself.
	lo, hi       float64
	exclusiveLow bool
	// min and max bound whole numbers. size accepts units of bytes too.
	min, max uint64
	size     bool
	// words are the accepted words. aliases maps other spellings to them.
	words   []string
	aliases map[string]string
	// unsupported are values of Dynamo that are not supported yet, in the syntax of flags.
	// anyValue stands for all values but nil.
	unsupported []string
	// zeroIsNone makes 0 in a flag or variable turn a whole number off.
	zeroIsNone bool
	// url accepts only the URL of an HTTP server.
	url bool
	// host accepts only a host name or an IP address, without a port.
	host bool
}

const anyValue = "*"

// accepts describes the accepted values of a setting, as the end of a sentence with "want".
// p points to the setting's field, and the field's type selects the description.
func (s *domain) accepts(p any) string {
	switch p.(type) {
	case *bool, **bool:
		return "true or false"
	case *float64, **float64:
		from := "a number, "
		if s.exclusiveLow {
			from += "above "
		}
		return s.orNone(p, from+number(s.lo)+" to "+number(s.hi))
	case *uint32, *uint64, **uint32, **uint64:
		if s.size {
			return s.orNone(p, fmt.Sprintf("a size such as 8GiB, %v to %v", bytesize.Size(s.min), bytesize.Size(s.max)))
		}
		return s.orNone(p, fmt.Sprintf("a whole number, %d to %d", s.min, s.max))
	case *string:
		return strings.Join(s.words, " or ")
	case **string:
		if s.onlyWords() {
			return s.orNone(p, strings.Join(s.words, " or "))
		}
		if s.url {
			return s.orNone(p, "an http or https URL")
		}
		if s.host {
			return s.orNone(p, "an IP address or a host name")
		}
		return s.orNone(p, fmt.Sprintf("text of 1 to %d bytes", maxText))
	}
	return "a JSON object"
}

// number formats v without an exponent.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// orNone adds "or none" to a description of accepted values, if p points to an optional
// field, which is a pointer. With zeroIsNone, 0 in a flag or variable means none too.
func (s *domain) orNone(p any, accepts string) string {
	switch p.(type) {
	case **float64, **uint32, **uint64, **string:
		if s.zeroIsNone {
			return accepts + ", or none or (flag and variable) 0"
		}
		return accepts + ", or none"
	}
	return accepts
}

// set reads the text of a flag or variable into the field that p points to. "none" turns an
// optional field, which is a pointer, off. set returns false for an invalid text, and leaves
// the field unchanged then.
func (s *domain) set(p any, text string) bool {
	if strings.EqualFold(text, "none") || s.zeroIsNone && text == "0" {
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

// setValue reads a text that is not "none" into the field that p points to, if the text is in
// the domain. It returns false for any other text. The field's type selects the parser.
func (s *domain) setValue(p any, text string) bool {
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

// store parses text into *p.
func store[T any](p *T, text string, parse func(string) (T, bool)) bool {
	v, ok := parse(text)
	if ok {
		*p = v
	}
	return ok
}

// storeNew parses text into a new value and stores a pointer to the value in *p.
func storeNew[T any](p **T, text string, parse func(string) (T, bool)) bool {
	v, ok := parse(text)
	if ok {
		*p = &v
	}
	return ok
}

// parseBool returns the value of a flag or variable of a switch. ok is false for other words.
func parseBool(text string) (value, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true", "on", "yes":
		return true, true
	case "0", "false", "off", "no":
		return false, true
	}
	return false, false
}

// parseFloat returns the number that text says. ok is false for a number out of range.
func (s *domain) parseFloat(text string) (v float64, ok bool) {
	// ParseFloat also accepts hexadecimal numbers, underscores, NaN and Inf.
	if strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && v >= s.lo && v <= s.hi && !(s.exclusiveLow && v == s.lo)
}

// parseWhole returns a parser of whole numbers in the range of s. Sizes may have a unit.
func parseWhole[T uint32 | uint64](s *domain) func(string) (T, bool) {
	return func(text string) (T, bool) {
		n, err := parseUint(text, s.size)
		return T(n), err == nil && n >= s.min && n <= s.max
	}
}

// parseUint reads a whole number. With size it also accepts a unit of bytes.
func parseUint(text string, size bool) (uint64, error) {
	if size {
		n, err := bytesize.Parse(text)
		return uint64(n), err
	}
	return strconv.ParseUint(text, 10, 64)
}

// parseWord returns the accepted word for text, which may be another spelling. ok is true for
// unsupported words of Dynamo too, because notYet has a better error for them.
func (s *domain) parseWord(text string) (word string, ok bool) {
	if word, ok := s.aliases[text]; ok {
		text = word
	}
	return text, slices.Contains(s.words, text) || slices.Contains(s.unsupported, text)
}

// onlyWords reports whether an optional text must be one of the words. Where other values are unsupported,
// any text is in the domain, because notYet has a better error for it.
func (s *domain) onlyWords() bool { return len(s.words) > 0 && len(s.unsupported) == 0 }

// parseText returns text. ok says whether text is acceptable: not empty, not too long, and a
// word, a host or a URL where the domain wants one.
func (s *domain) parseText(text string) (same string, ok bool) {
	if s.onlyWords() {
		return s.parseWord(text)
	}
	if text == "" || len(text) > maxText {
		return "", false
	}
	if s.host {
		return text, isHost(text)
	}
	if !s.url {
		return text, true
	}
	u, err := url.Parse(text)
	return text, err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// setJSON reads a JSON value into the field that p points to. The value has the field's type,
// or is null for an optional field. setJSON returns false for any other value.
func (s *domain) setJSON(p any, raw json.RawMessage) bool {
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
	// The first character tells a JSON number from other values.
	return strings.ContainsAny(text[:1], "-0123456789") && s.setValue(p, text)
}

// setNil turns the optional field that p points to off. It returns false for a field that is
// no pointer and so has no such value.
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

// formatValue formats the value that p points to in the syntax of flags; nil is "none".
func formatValue(p any) string {
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
		return formatOptional(*p)
	case **float64:
		return formatOptional(*p)
	case **uint32:
		return formatOptional(*p)
	case **uint64:
		return formatOptional(*p)
	case **string:
		return formatOptional(*p)
	}
	return ""
}

// formatOptional returns the text of an optional field's value: "none" without a value.
func formatOptional[T any](p *T) string {
	if p == nil {
		return "none"
	}
	return formatValue(p)
}

// check reports whether the value of the field that p points to is in the domain. It parses
// the formatted value into a copy, so that check and set have the same rules. Booleans are
// always in the domain.
func (s *domain) check(p any) bool {
	value := formatValue(p)
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

// invalid returns the error of a value that is not in the domain.
func (s *domain) invalid(label string, p any, value string) error {
	return fmt.Errorf("%s %.64q: want %s", label, value, s.accepts(p))
}

// maxHost bounds a host name, in bytes.
const maxHost = 253

// isHost reports whether text is an IP address or may be a host name.
func isHost(text string) bool {
	return net.ParseIP(text) != nil || len(text) <= maxHost && !strings.ContainsFunc(text, notInName)
}

// notInName reports whether r cannot be part of a host name.
func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
}
