package lint

import (
	"go/doc"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// unexampled is a public package without an Example. The reason says where a reader sees
// the package at work instead.
type unexampled struct{ dir, reason string }

// withoutExample lists the public packages that need no Example.
func withoutExample() []unexampled {
	agentRoom := "a room of the agent: the Example of package agent opens them all"
	transport := "a transport for package router, whose Example shows one; its tests run real servers"
	return []unexampled{
		{"agent/admin", agentRoom},
		{"agent/descriptors", agentRoom},
		{"agent/engine", agentRoom},
		{"agent/events", agentRoom},
		{"agent/pools", agentRoom},
		{"agent/process", agentRoom},
		{"agent/readahead", agentRoom},
		{"agent/refusal", agentRoom},
		{"agent/reports", agentRoom},
		{"agent/socket", agentRoom},
		{"blockmgr/diskio", "a part of a pool under the pool's lock: see the Example of package blockmgr"},
		{"blockmgr/tier", "a part of a pool under the pool's lock: see the Example of package blockmgr"},
		{"consolidator/checkpoint", "a part of a Rank: see the Example of package consolidator"},
		{"consolidator/mirror", "a part of a Rank: see the Example of package consolidator"},
		{"publisher/dynamo", "its reader is a Dynamo router: interop/ runs the real one"},
		{"router/feed", "a part of a Router: see the Example of package router"},
		{"router/index/runs", "the memory of package index, which has the Example"},
		{"router/source/dynamo", transport},
		{"router/source/http", transport},
		{"router/source/nats", transport},
	}
}

var exampleRule = rule{
	name:   "every public package has an Example",
	reason: "a reader sees the main call at work in go doc, and the output is tested; add an Example with // Output:, or a row with a reason in withoutExample()",
	check:  func(t *tree) []problem { return missingExamples(t, withoutExample()) },
}

// public reports whether a program may import the package in dir: the lab, commands and
// test doubles are for this repository.
func public(dir string) bool {
	private := []string{"internal", "lab", "cmd", "examples", "scripts", "interop"}
	return !slices.ContainsFunc(private, func(p string) bool { return within(dir, p) }) && !strings.HasSuffix(dir, "test")
}

// missingExamples finds public packages without an Example whose output is tested, and
// exceptions that are no longer needed.
func missingExamples(t *tree, allowed []unexampled) []problem {
	packages, shown := make(map[string]*source), make(map[string]bool)
	for s := range t.goFiles {
		dir := s.dir()
		switch {
		case s.isTest():
			tested := func(e *doc.Example) bool { return e.Output != "" || e.EmptyOutput }
			shown[dir] = shown[dir] || slices.ContainsFunc(doc.Examples(s.syntax), tested)
		case packages[dir] == nil && public(dir):
			packages[dir] = s
		}
	}
	var found []problem
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		excepted := slices.ContainsFunc(allowed, func(u unexampled) bool { return u.dir == dir })
		switch at := packages[dir].syntax.Package; {
		case !shown[dir] && !excepted:
			found = append(found, t.at(at, "package %s has no Example with // Output:", dir))
		case shown[dir] && excepted:
			found = append(found, t.at(at, "package %s has an Example: delete its row in withoutExample()", dir))
		}
	}
	return found
}

func TestMissingExamples(t *testing.T) {
	const tested, untested = "package a\n\nfunc Example() {\n\tprintln()\n\t// Output:\n}\n", "package a\n\nfunc Example() {}\n"
	for name, c := range map[string]struct {
		test    string
		allowed []unexampled
		want    int
	}{
		"tested":              {tested, nil, 0},
		"not run":             {untested, nil, 1},
		"excepted":            {untested, []unexampled{{"a", "x"}}, 0},
		"excepted in vain":    {tested, []unexampled{{"a", "x"}}, 1},
		"another's exception": {untested, []unexampled{{"b", "x"}}, 1},
	} {
		repo, err := load(fstest.MapFS{
			"go.mod":            {Data: []byte("module example.org/m\n")},
			"a/a.go":            {Data: []byte("package a\n")},
			"a/example_test.go": {Data: []byte(c.test)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := missingExamples(repo, c.allowed); len(got) != c.want {
			t.Errorf("%s: found %v, want %d problems", name, got, c.want)
		}
	}
}

func TestExceptionsFromExamplesExist(t *testing.T) {
	repo := loadRepository(t)
	for _, u := range withoutExample() {
		if !slices.ContainsFunc(repo.sources, func(s source) bool { return s.syntax != nil && s.dir() == u.dir }) {
			t.Errorf("withoutExample() lists %s, where there is no Go file", u.dir)
		}
	}
}
