package lint

import (
	"bytes"
	"go/ast"
	"go/token"
	"iter"
	"path"
	"regexp"
	"slices"
	"strings"
)

const maxLines = 500

var sizeRule = rule{
	name:   "no file is longer than 500 lines",
	reason: "a file has one job and can be read in one sitting; generated files are nobody's reading",
	check: perFile(func(s *source, found report) {
		if n := bytes.Count(s.data, []byte("\n")); n > maxLines {
			found(s.syntax.Package, "%d lines", n)
		}
	}, written),
}

const maxFunctionLines = 60

var functionRule = rule{
	name:   "no function is longer than 60 lines",
	reason: "what does not fit a screen does more than one thing; tests and their tables may be longer",
	check: func(t *tree) []problem {
		return perFile(func(s *source, found report) {
			for _, d := range s.syntax.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				if n := t.fset.Position(f.End()).Line - t.fset.Position(f.Pos()).Line + 1; n > maxFunctionLines {
					found(f.Pos(), "%s has %d lines", f.Name.Name, n)
				}
			}
		}, noTest, written)(t)
	},
}

var packageDocRule = rule{
	name:   "every package has its documentation in doc.go",
	reason: "a reader looks in one place for what the package guarantees, who owns what, and what happens on failure",
	check: func(t *tree) []problem {
		var found []problem
		documented, first := make(map[string]bool), make(map[string]*source)
		for s := range t.goFiles {
			if first[s.dir()] == nil {
				first[s.dir()] = s
			}
			switch doc := strings.TrimSpace(s.syntax.Doc.Text()); {
			case path.Base(s.path) == "doc.go":
				documented[s.dir()] = doc != ""
				if start := docStart(s.syntax.Name.Name); doc != "" && !strings.HasPrefix(doc, start) {
					found = append(found, t.at(s.syntax.Package, "package comment must begin with %q", start))
				}
			case doc != "" && !s.isGenerated():
				found = append(found, t.at(s.syntax.Package, "package comment outside doc.go"))
			}
		}
		for dir, s := range first {
			if !documented[dir] {
				found = append(found, t.at(s.syntax.Package, "package %s has no doc.go with a package comment", dir))
			}
		}
		return found
	},
}

func docStart(name string) string {
	if name == "main" {
		return "Command "
	}
	return "Package " + name + " "
}

var exportedDocRule = rule{
	name:   "exported identifiers are documented",
	reason: "a caller must learn units, ownership and errors without reading the body",
	check: perFile(func(s *source, found report) {
		for _, d := range s.syntax.Decls {
			for _, id := range undocumented(d) {
				found(id.Pos(), "%s has no doc comment", id.Name)
			}
		}
	}, noTest, written, noCommand),
}

// undocumented lists the exported names that d declares without a comment. A
// comment on a group covers the group; one on a constant or variable covers
// those after it too, as in "Min and Max bound the size".
func undocumented(d ast.Decl) []*ast.Ident {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && receiverExported(d) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		if d.Doc != nil {
			return nil
		}
		var names []*ast.Ident
		covered := false
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Doc == nil && spec.Name.IsExported() {
					names = append(names, spec.Name)
				}
			case *ast.ValueSpec:
				covered = covered || spec.Doc != nil
				if !covered && spec.Comment == nil && spec.Names[0].IsExported() {
					names = append(names, spec.Names[0])
				}
			}
		}
		return names
	}
	return nil
}

var drawerRule = rule{
	name:   "no package is a drawer",
	reason: "a name such as util says nothing about what is inside, so everything ends up inside; name a package for what it does",
	check: perFile(func(s *source, found report) {
		drawers := []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "lib", "base", "types"}
		names := []string{strings.TrimSuffix(s.syntax.Name.Name, "_test"), path.Base(s.dir())}
		if i := slices.IndexFunc(names, func(name string) bool { return slices.Contains(drawers, name) }); i >= 0 {
			found(s.syntax.Name.Pos(), "package %s", names[i])
		}
	}),
}

var sleepRule = rule{
	name:   "tests do not sleep but in synctest's time",
	reason: "a sleep is too short on a busy machine and too long on every other; use synctest, a channel, or a wait for a condition",
	check: perFile(func(s *source, found report) {
		clock := s.localName("time")
		if !s.isTest() || clock == "" || s.localName("testing/synctest") != "" {
			return
		}
		for x, sel := range selectors(s.syntax) {
			if x == clock && sel.Sel.Name == "Sleep" {
				found(sel.Pos(), "time.Sleep")
			}
		}
	}),
}

var initRule = rule{
	name:   "no init functions",
	reason: "importing a package must have no effect; whatever needs setting up is set up by who needs it",
	check: perFile(func(s *source, found report) {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				found(f.Pos(), "func init")
			}
		}
	}),
}

var unfinishedRule = rule{
	name:   "no notes to self",
	reason: "what is not done is said in the README or not shipped; a note in the code is read by nobody",
	check: func(t *tree) []problem {
		notes := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"}
		return append(perFile(func(s *source, found report) {
			for _, group := range s.syntax.Comments {
				for _, c := range group.List {
					words := strings.FieldsFunc(c.Text, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') })
					if slices.ContainsFunc(words, func(w string) bool { return slices.Contains(notes, w) }) {
						line, _, _ := strings.Cut(c.Text, "\n")
						found(c.Pos(), "%s", line)
					}
				}
			}
		})(t), t.placeholders()...)
	},
}

// placeholder matches a line of a document, outside its code blocks, that waits
// for its text.
var placeholder = regexp.MustCompile(`^[A-Z]+_[A-Z_]+$`)

// placeholders finds the lines of documents that nobody has written yet.
func (t *tree) placeholders() []problem {
	var found []problem
	for _, s := range t.sources {
		if !strings.HasSuffix(s.path, ".md") {
			continue
		}
		inCode := false
		for i, line := range strings.Split(string(s.data), "\n") {
			if strings.HasPrefix(line, "```") {
				inCode = !inCode
			}
			if !inCode && placeholder.MatchString(line) {
				found = append(found, problem{s.path, i + 1, line})
			}
		}
	}
	return found
}

var exitRule = rule{
	name:   "only main ends the process",
	reason: "a library that exits takes away its caller's chance to drain, to report and to be tested",
	check: perFile(func(s *source, found report) {
		ends := map[string][]string{s.localName("os"): {"Exit"}, s.localName("log"): {"Fatal", "Fatalf", "Fatalln"}}
		for x, sel := range selectors(s.syntax) {
			if slices.Contains(ends[x], sel.Sel.Name) {
				found(sel.Pos(), "%s.%s", x, sel.Sel.Name)
			}
		}
	}, noTest, noCommand),
}

var panicRule = rule{
	name:   "a panic means a bug",
	reason: "bad input and failed I/O are errors; a panic marks a broken invariant and its message begins with BUG:",
	check: perFile(func(s *source, found report) {
		deferred := recovering(s.syntax)
		for n := range ast.Preorder(s.syntax) {
			if call, ok := n.(*ast.CallExpr); ok && isBuiltin(call, "panic") && !mentionsBug(call) && !slices.ContainsFunc(deferred, encloses(call)) {
				found(call.Pos(), "panic without BUG:")
			}
		}
	}, noTest, written),
}

// selectors yields the selectors whose left side is a name, with that name.
func selectors(f *ast.File) iter.Seq2[string, *ast.SelectorExpr] {
	return func(yield func(string, *ast.SelectorExpr) bool) {
		for n := range ast.Preorder(f) {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && !yield(x.Name, sel) {
					return
				}
			}
		}
	}
}

// recovering lists the function literals that call recover: what they panic
// with is somebody else's panic, passed on.
func recovering(f *ast.File) []*ast.FuncLit {
	var all, found []*ast.FuncLit
	for n := range ast.Preorder(f) {
		switch n := n.(type) {
		case *ast.FuncLit:
			all = append(all, n)
		case *ast.CallExpr:
			if isBuiltin(n, "recover") {
				found = append(found, slices.DeleteFunc(slices.Clone(all), func(l *ast.FuncLit) bool { return !encloses(n)(l) })...)
			}
		}
	}
	return found
}

func encloses(n ast.Node) func(*ast.FuncLit) bool {
	return func(l *ast.FuncLit) bool { return l.Pos() <= n.Pos() && n.End() <= l.End() }
}

func isBuiltin(call *ast.CallExpr, name string) bool {
	f, ok := call.Fun.(*ast.Ident)
	return ok && f.Name == name
}

// mentionsBug reports whether a string literal in the call begins with BUG:.
func mentionsBug(call *ast.CallExpr) bool {
	for n := range ast.Preorder(call) {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.HasPrefix(lit.Value[1:], "BUG: ") {
			return true
		}
	}
	return false
}

// doubled matches names that stand for a part of the product in a test, and switches
// that turn a check of the product off.
var doubled = regexp.MustCompile(`(?i)^(fake|mock|stub|inject|trustbytes)`)

var doubleRule = rule{
	name:   "no test double in the product",
	reason: "what imitates or breaks a part belongs to lab, to a package named ...test or to a test file: users never run it, readers never meet it",
	check: perFile(func(s *source, found report) {
		if within(s.path, "lab") || within(s.path, "scripts") || strings.HasSuffix(s.dir(), "test") {
			return
		}
		if name := path.Base(s.path); doubled.MatchString(name) {
			found(s.syntax.Package, "file %s", name)
		}
		for n := range ast.Preorder(s.syntax) {
			for _, id := range declared(n) {
				if doubled.MatchString(id.Name) {
					found(id.Pos(), "%s", id.Name)
				}
			}
		}
	}, noTest),
}

// declared returns the names that a node declares.
func declared(n ast.Node) []*ast.Ident {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.ValueSpec:
		return n.Names
	case *ast.Field:
		return n.Names
	}
	return nil
}
