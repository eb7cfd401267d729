package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// source is one text file.
type source struct {
	path string // relative to the root, with slashes
	data []byte
	// syntax is nil for what is not Go and for anything under testdata.
	syntax *ast.File
}

func (s *source) isTest() bool      { return strings.HasSuffix(s.path, "_test.go") }
func (s *source) isGenerated() bool { return s.syntax != nil && ast.IsGenerated(s.syntax) }
func (s *source) dir() string       { return path.Dir(s.path) }

// imports yields the path and position of each import.
func (s *source) imports(yield func(string, token.Pos) bool) {
	for _, i := range s.syntax.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil || !yield(p, i.Pos()) {
			return
		}
	}
}

// localName is the name by which s refers to the import of path p, or "".
func (s *source) localName(p string) string {
	for _, i := range s.syntax.Imports {
		if i.Path.Value != strconv.Quote(p) {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return packageName(p)
	}
	return ""
}

// packageName guesses a package's name from its path, which is right for every
// library that a rule asks about.
func packageName(p string) string {
	base := path.Base(p)
	if strings.HasPrefix(base, "v") && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(p))
	}
	return strings.TrimSuffix(strings.TrimPrefix(base, "go-"), ".go")
}

// tree is all text files of a module.
type tree struct {
	module  string
	fset    *token.FileSet
	sources []source
}

// goFiles yields every parsed Go file.
func (t *tree) goFiles(yield func(*source) bool) {
	for i := range t.sources {
		if t.sources[i].syntax != nil && !yield(&t.sources[i]) {
			return
		}
	}
}

// at makes a problem at a position of a Go file.
func (t *tree) at(pos token.Pos, format string, args ...any) problem {
	p := t.fset.Position(pos)
	return problem{p.Filename, p.Line, fmt.Sprintf(format, args...)}
}

// problem is one breach of a rule.
type problem struct {
	path string
	line int
	text string
}

func (p problem) String() string { return fmt.Sprintf("%s:%d: %s", p.path, p.line, p.text) }

// rule is one rule of the house.
type rule struct {
	name   string
	reason string
	check  func(t *tree) []problem
}

// report notes a problem at a position of the file that a rule looks at.
type report func(pos token.Pos, format string, args ...any)

// perFile returns the check of a rule that looks at one Go file after the other. The rule
// sees the files that pass every filter.
func perFile(look func(s *source, found report), filters ...func(*source) bool) func(*tree) []problem {
	return func(t *tree) (problems []problem) {
		for s := range t.goFiles {
			if slices.ContainsFunc(filters, func(passes func(*source) bool) bool { return !passes(s) }) {
				continue
			}
			look(s, func(pos token.Pos, format string, args ...any) {
				problems = append(problems, t.at(pos, format, args...))
			})
		}
		return problems
	}
}

// The filters of perFile.
func noTest(s *source) bool    { return !s.isTest() }
func written(s *source) bool   { return !s.isGenerated() }
func noCommand(s *source) bool { return s.syntax.Name.Name != "main" }

// load reads the module whose root is fsys. It leaves out build output, hidden
// directories other than .ci and .github, nested modules, and binary files.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{fset: token.NewFileSet()}
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, fmt.Errorf("module root: %w", err)
	}
	first, _, _ := strings.Cut(string(mod), "\n")
	t.module = strings.TrimPrefix(first, "module ")
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skipped(fsys, name):
			return fs.SkipDir
		case !d.Type().IsRegular() || name == ".git": // a file in a linked work tree
			return nil
		}
		return t.add(fsys, name)
	})
	if err != nil {
		return nil, fmt.Errorf("read the repository: %w", err)
	}
	return t, nil
}

func skipped(fsys fs.FS, dir string) bool {
	if dir == "." {
		return false
	}
	if _, err := fs.Stat(fsys, path.Join(dir, "go.mod")); err == nil {
		return true
	}
	base := path.Base(dir)
	hidden := strings.HasPrefix(base, ".") && base != ".ci" && base != ".github"
	return hidden || dir == "site" || slices.Contains([]string{"bin", "dist", "__pycache__"}, base) || strings.HasSuffix(dir, "testdata/rapid")
}

func (t *tree) add(fsys fs.FS, name string) error {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	if bytes.IndexByte(data[:min(len(data), 8192)], 0) >= 0 {
		return nil
	}
	s := source{path: name, data: data}
	if strings.HasSuffix(name, ".go") && !slices.Contains(strings.Split(name, "/"), "testdata") {
		s.syntax, err = parser.ParseFile(t.fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
	}
	t.sources = append(t.sources, s)
	return nil
}
