package config

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of the document anew")

const document = "../../docs/router-config.md"

// between replaces what lies between two marks of a text.
func between(t *testing.T, text, mark, table string) string {
	t.Helper()
	before, rest, found := strings.Cut(text, "<!-- "+mark+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end -->\n")
	if !found || !ended {
		t.Fatalf("%s has no table between the marks %q and \"end\"", document, mark)
	}
	return before + "<!-- " + mark + " -->\n" + table + "<!-- end -->\n" + after
}

func groups() []string {
	return []string{GroupScore, GroupChoice, GroupCache, GroupLoad, GroupQueue, GroupDisagg, GroupStart, GroupLater}
}

func table(group string) string {
	var b strings.Builder
	b.WriteString("| setting | flags and variables | takes | default | since | here |\n|---|---|---|---|---|---|\n")
	for _, s := range Settings() {
		if s.Group != group {
			continue
		}
		names := make([]string, 0, 8)
		for _, flag := range s.Flags {
			names = append(names, "`--"+flag+"`")
		}
		for _, name := range s.Env {
			names = append(names, "`"+name+"`")
		}
		accepts := s.Accepts()
		if later := s.Later(); later != "" {
			accepts += "; **not yet:** " + later
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s | %s |\n", s.Name, strings.Join(names, "<br>"), accepts, s.Default(), s.Since, s.Meaning)
	}
	return b.String()
}

// Run with -update to write the tables into the document.
func TestDocumentHasTheTableOfSettings(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := string(data)
	for _, group := range groups() {
		want = between(t, want, group, table(group))
	}
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(data) {
		t.Errorf("%s differs from Settings(); write it anew with: go test ./router/config -update", document)
	}
	for _, s := range Settings() {
		if !slices.Contains(groups(), s.Group) {
			t.Errorf("%s is in no group of the document: %q", s.Name, s.Group)
		}
		for _, name := range slices.Concat([]string{"`" + s.Name + "`"}, s.Flags, s.Env) {
			if !strings.Contains(want, name) {
				t.Errorf("%s: the document does not mention %s", s.Name, name)
			}
		}
	}
	for _, f := range new(Override).fields() {
		if !strings.Contains(want, "`"+f.name+"`") {
			t.Errorf("the document does not mention the override %s", f.name)
		}
	}
}

// TestDocumentShowsARealError: the document's example of a value that is not supported yet is an error
// of today.
func TestDocumentShowsARealError(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(string(data), ": not yet; want ")
	setting, value, _ := strings.Cut(before[strings.LastIndex(before, "`")+1:], " ")
	value = value[strings.LastIndex(value, " ")+1:]
	c := read(t, fmt.Sprintf("{%q: %s}", setting, value))
	if _, err := c.Validate(); !found || err == nil || !strings.Contains(string(data), "`"+err.Error()+"`") {
		t.Errorf("the document shows %s %s; the error is %v", setting, value, err)
	}
}

// TestDocumentShowsAConfigurationThatWorks: its example is read and valid.
func TestDocumentShowsAConfigurationThatWorks(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "```json\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is no example")
	}
	c := read(t, example)
	if notices, err := c.Validate(); err != nil || len(notices) != 0 {
		t.Errorf("%s: %v, %v", example, notices, err)
	}
}
