package cli

import (
	"fmt"
	"strings"
	"testing"
)

// shellCommand is one command of a script: its words without quotes, and the variables set before it.
type shellCommand struct {
	words, environ []string
}

// shellCommands returns the commands of a script in the order of their ends, also those in $( ) and <( ). Words keep
// references to variables and nested commands as they are written. Redirections are left out. Documents
// need no more of a shell: compound commands, here-documents and backquotes are errors.
func shellCommands(script string) ([]shellCommand, error) {
	l := &shellLexer{text: script}
	if err := l.list(0); err != nil {
		return nil, fmt.Errorf("%w at %.40q", err, script[min(l.at, len(script)):])
	}
	return l.found, nil
}

type shellLexer struct {
	text  string
	at    int
	found []shellCommand
}

// list reads commands up to the byte end, 0 for the end of the text.
func (l *shellLexer) list(end byte) error {
	var words []string
	var word strings.Builder
	inWord, redirected := false, false
	endWord := func() {
		if inWord && !redirected {
			words = append(words, word.String())
		}
		redirected = redirected && !inWord
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		redirected = false
		var c shellCommand
		for len(words) > 0 && isAssignment(words[0]) {
			c.environ, words = append(c.environ, words[0]), words[1:]
		}
		if c.words = words; len(words) > 0 {
			l.found = append(l.found, c)
		}
		words = nil
	}
	for l.at < len(l.text) {
		c, rest := l.text[l.at], l.text[l.at:]
		switch {
		case end != 0 && c == end:
			l.at++
			endCommand()
			return nil
		case strings.HasPrefix(rest, "\\\n"):
			l.at += 2
		case c == ' ' || c == '\t':
			l.at++
			endWord()
		case c == '\n' || c == ';' || c == '&' || c == '|':
			l.at++
			endCommand()
		case c == '#' && !inWord:
			l.at += max(strings.IndexByte(rest+"\n", '\n'), 1)
		case strings.HasPrefix(rest, "<("):
			if err := l.nested(&word); err != nil {
				return err
			}
			inWord = true
		case strings.HasPrefix(rest, "<<") || strings.ContainsRune("`(){}", rune(c)) && !inWord:
			return fmt.Errorf("%q is not understood", rest[:1])
		case c == '<' || c == '>':
			if strings.Trim(word.String(), "0123456789") == "" { // the number of a descriptor
				word.Reset()
				inWord = false
			}
			endWord()
			l.at += len(rest) - len(strings.TrimLeft(rest, "<>&"))
			redirected = true
		default:
			inWord = true
			if err := l.piece(&word); err != nil {
				return err
			}
		}
	}
	if end != 0 {
		return fmt.Errorf("no %q", end)
	}
	endCommand()
	return nil
}

// piece adds a quoted text, a nested command or one byte to a word.
func (l *shellLexer) piece(word *strings.Builder) error {
	switch c, rest := l.text[l.at], l.text[l.at+1:]; {
	case c == '\'':
		text, _, ok := strings.Cut(rest, "'")
		if !ok {
			return fmt.Errorf("no closing %q", c)
		}
		word.WriteString(text)
		l.at += len(text) + 2
	case c == '"':
		l.at++
		for l.at < len(l.text) && l.text[l.at] != '"' {
			if err := l.quoted(word); err != nil {
				return err
			}
		}
		if l.at == len(l.text) {
			return fmt.Errorf("no closing %q", c)
		}
		l.at++
	default:
		return l.quoted(word)
	}
	return nil
}

// quoted adds what has a meaning also between double quotes: an escaped byte, a nested command, or one byte.
func (l *shellLexer) quoted(word *strings.Builder) error {
	c, rest := l.text[l.at], l.text[l.at+1:]
	if c == '$' && strings.HasPrefix(rest, "(") {
		return l.nested(word)
	}
	if c == '\\' && rest != "" {
		l.at++
	}
	word.WriteByte(l.text[l.at])
	l.at++
	return nil
}

// nested reads the commands of $( ) or <( ), and adds their text to a word.
func (l *shellLexer) nested(word *strings.Builder) error {
	from := l.at
	l.at += 2
	err := l.list(')')
	word.WriteString(l.text[from:l.at])
	return err
}

// isAssignment reports whether a word sets a variable.
func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

func TestShellCommands(t *testing.T) {
	for script, want := range map[string]string{
		"a b  c":                    "[a|b|c]",
		"a 'b c' d\"e f\"":          "[a|b c|de f]",
		"a \\\n  b # c\n# d\ne":     "[a|b] [e]",
		"X=1 Y='2 3' a X=4; Z=5":    "X=1,Y=2 3:[a|X=4]",
		"a > b 2>&1 c | d && e & f": "[a|c] [d] [e] [f]",
		"a \"$(b 'c)' d)\" $E":      "[b|c)|d] [a|$(b 'c)' d)|$E]",
		"a <(b c) d":                "[b|c] [a|<(b c)|d]",
		`a "b\"c" d\ e '{"f":1}'`:   `[a|b"c|d e|{"f":1}]`,
		"a 2 >> b; c#d":             "[a|2] [c#d]",
		"a 'b":                      "error",
		"a $(b":                     "error",
		"a <<E\nE":                  "error",
		"(a)":                       "error",
		"a `b`":                     "error",
	} {
		found, err := shellCommands(script)
		var parts []string
		for _, c := range found {
			environ := strings.Join(c.environ, ",")
			if environ != "" {
				environ += ":"
			}
			parts = append(parts, environ+"["+strings.Join(c.words, "|")+"]")
		}
		got := strings.Join(parts, " ")
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s (%v), want %s", script, got, err, want)
		}
	}
}
