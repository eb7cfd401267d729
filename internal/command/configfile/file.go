package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the file in bytes.
const maxFile = 1 << 20

// Sections are the names of the commands that a file configures.
var Sections = []string{"agent", "router"}

// Value is one value of a file.
type Value struct {
	// Origin names the file and the line, such as "blockyard.yaml:7".
	Origin string
	// Any is a string for a scalar of any kind, []any for a list, map[string]any for a map. The
	// scalars in a list or map are of the types of YAML.
	Any any
	// Raw is the value in the types of YAML.
	Raw any
	// taken is true for a value of the command's own section.
	own bool
}

// File is a parsed file.
type File struct {
	// Path is the file's name.
	Path string
	// common are the settings outside the sections, sections those in them.
	common   map[string]Value
	sections map[string]map[string]Value
}

// Load reads and parses a file. A key that stands twice, a value that is null, and a section that is
// no map are errors.
func Load(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxFile:
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	var root yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(&root); {
	case errors.Is(err, io.EOF):
		return &File{Path: path}, nil // empty
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document", path)
	}
	f := &File{Path: path, sections: make(map[string]map[string]Value)}
	return f, f.parse(root.Content[0])
}

// parse sets f from the root of the document.
func (f *File) parse(root *yaml.Node) (err error) {
	if root.Kind != yaml.MappingNode {
		return f.errorAt(root, "want settings by name")
	}
	var plain yaml.Node = *root
	plain.Content = nil
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if !slices.Contains(Sections, key.Value) {
			plain.Content = append(plain.Content, key, value)
			continue
		}
		if f.sections[key.Value] != nil {
			return f.errorAt(key, "%s: is there twice", key.Value)
		}
		if value.Kind != yaml.MappingNode {
			return f.errorAt(value, "%s: want settings by name", key.Value)
		}
		if f.sections[key.Value], err = f.values(value); err != nil {
			return err
		}
	}
	f.common, err = f.values(&plain)
	return err
}

// values returns the values of a map by name.
func (f *File) values(node *yaml.Node) (map[string]Value, error) {
	all := make(map[string]Value)
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if _, twice := all[key.Value]; twice {
			return nil, f.errorAt(key, "%s: is there twice", key.Value)
		}
		v := Value{Origin: fmt.Sprintf("%s:%d", f.Path, key.Line)}
		if err := value.Decode(&v.Raw); err != nil {
			return nil, f.errorAt(value, "%s: %w", key.Value, err)
		}
		switch value.Kind {
		case yaml.ScalarNode:
			if v.Raw == nil {
				return nil, f.errorAt(value, "%s: has no value; leave the name out", key.Value)
			}
			v.Any = value.Value
		default:
			v.Any = v.Raw
		}
		all[key.Value] = v
	}
	return all, nil
}

func (f *File) errorAt(n *yaml.Node, text string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", f.Path, n.Line, fmt.Errorf(text, args...))
}

// For returns the values for a command, by the names that known has: those of its section, and those
// outside the sections. A name with "_" is that with "-" where known has no other. The error names
// what the command does not know. A name outside the sections must be one of known or of others,
// which are the names of the other command.
func (f *File) For(section string, known, others []string) (map[string]Value, error) {
	all := make(map[string]Value)
	for name, v := range f.common {
		switch to, ok := match(name, known); {
		case ok:
			all[to] = v
		default:
			if _, other := match(name, others); !other {
				return nil, fmt.Errorf("%s: %s: unknown%s", v.Origin, name, hint(name, append(slices.Clone(known), Sections...)))
			}
		}
	}
	for name, v := range f.sections[section] {
		to, ok := match(name, known)
		if !ok {
			return nil, fmt.Errorf("%s: %s.%s: unknown%s", v.Origin, section, name, hint(name, known))
		}
		if before, twice := all[to]; twice && before.own {
			return nil, fmt.Errorf("%s: %s.%s: is there twice, also at %s", v.Origin, section, name, before.Origin)
		}
		v.own = true
		all[to] = v
	}
	return all, nil
}

// match returns the known name that name means.
func match(name string, known []string) (string, bool) {
	if slices.Contains(known, name) {
		return name, true
	}
	dashed := strings.ReplaceAll(name, "_", "-")
	return dashed, slices.Contains(known, dashed)
}

// hint returns a known name that is like name, as the end of an error; empty without one.
func hint(name string, known []string) string {
	best, least := "", max(2, len(name)/4)+1
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is the least number of letters to insert, remove or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next++
			}
			diagonal, row[j+1] = row[j+1], min(next, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
