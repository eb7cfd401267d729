package lint

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

func rules() []rule {
	return []rule{
		layerRule, testKitRule, hookRule, pureRule, shelfRule, leakRule,
		budgetRule, sizeRule, functionRule, packageDocRule, exportedDocRule, drawerRule,
		sleepRule, initRule, unfinishedRule, exitRule, panicRule, doubleRule,
		machineRule, lockedRule, exampleRule,
	}
}

func TestRepositoryKeepsTheRules(t *testing.T) {
	repo := loadRepository(t)
	for _, r := range rules() {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			for _, p := range r.check(repo) {
				t.Errorf("%s\n\trule: %s\n\twhy:  %s", p, r.name, r.reason)
			}
		})
	}
}

// TestLoaderSeesTheRepository keeps the rules from passing because they were
// shown nothing.
func TestLoaderSeesTheRepository(t *testing.T) {
	repo := loadRepository(t)
	if want := "github.com/blockyard-ai/blockyard"; repo.module != want {
		t.Errorf("module is %q, want %q", repo.module, want)
	}
	for _, want := range []string{
		"internal/kv/key.go", "internal/proto/frame.go", "internal/lint/lint_test.go", "cmd/blockyard/main.go", "Makefile", ".ci/run",
	} {
		if !slices.ContainsFunc(repo.sources, func(s source) bool { return s.path == want }) {
			t.Errorf("%s was not loaded", want)
		}
	}
	for _, l := range layers() {
		if !slices.ContainsFunc(repo.sources, func(s source) bool { return s.syntax != nil && within(s.path, l.dir) }) {
			t.Errorf("layers() lists %s, where there is no Go file", l.dir)
		}
	}
}

// TestShelfListsTheDirectDependencies keeps shelf and go.mod equal.
func TestShelfListsTheDirectDependencies(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var required, listed []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		required = append(required, m[1])
	}
	for _, l := range shelf() {
		listed = append(listed, l.module)
	}
	slices.Sort(required)
	slices.Sort(listed)
	if len(required) == 0 || !slices.Equal(required, listed) {
		t.Errorf("go.mod requires %v\nthe shelf lists %v", required, listed)
	}
}

// repository is read once, as most tests look at it. None changes it.
var repository = sync.OnceValues(func() (*tree, error) { return load(os.DirFS("../..")) })

func loadRepository(t *testing.T) *tree {
	t.Helper()
	repo, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// loadExample makes a tree of one file beside what every example needs.
func loadExample(t *testing.T, name, content string) *tree {
	t.Helper()
	files := fstest.MapFS{
		"go.mod": {Data: []byte("module example.org/m\n")},
		name:     {Data: []byte(content)},
	}
	repo, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func TestLoaderLeavesOutWhatIsNotOurs(t *testing.T) {
	files := fstest.MapFS{
		"go.mod":                  {Data: []byte("module example.org/m\n\ngo 1.26\n")},
		"a/a.go":                  {Data: []byte("package a\n")},
		"a/testdata/x.go":         {Data: []byte("not Go")},
		"a/testdata/rapid/x.fail": {Data: []byte("noise")},
		"bench/go.mod":            {Data: []byte("module example.org/bench\n")},
		"bench/b.go":              {Data: []byte("package bench\n")},
		"bin/tool":                {Data: []byte("binary\x00")},
		".git/config":             {Data: []byte("config")},
		".ci/run":                 {Data: []byte("#!/bin/sh\n")},
		"image.bin":               {Data: []byte{0, 1, 2}},
	}
	repo, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range repo.sources {
		got = append(got, fmt.Sprintf("%s %t", s.path, s.syntax != nil))
	}
	want := []string{".ci/run false", "a/a.go true", "a/testdata/x.go false", "go.mod false"}
	slices.Sort(got)
	if repo.module != "example.org/m" || !slices.Equal(got, want) {
		t.Errorf("module %q, files %q; want %q", repo.module, got, want)
	}
	if _, err := load(fstest.MapFS{}); err == nil {
		t.Error("a directory without go.mod was loaded")
	}
}
