package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of the document anew")

const document = "../../docs/kvbm-environment.md"

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

func readTable() string {
	var b strings.Builder
	b.WriteString("| variable | takes | default | meaning | in the agent |\n|---|---|---|---|---|\n")
	for _, v := range Variables() {
		if v.Status != Read {
			continue
		}
		effect := "**used.** " + v.Effect
		if !v.Used {
			effect = "accepted, no effect: " + v.Effect
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", v.Name, v.Accepts, code(v.Default), v.Meaning, effect)
	}
	return b.String()
}

func unreadTable() string {
	var b strings.Builder
	b.WriteString("| variable | status | why |\n|---|---|---|\n")
	for _, v := range Variables() {
		if v.Status != Read {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, v.Status, v.Meaning)
		}
	}
	return b.String()
}

func code(s string) string {
	if s == "" {
		return "–"
	}
	return "`" + s + "`"
}

// Run with -update to write the tables into the document.
func TestDocumentHasTheTableOfVariables(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := between(t, between(t, string(data), "read", readTable()), "not read", unreadTable())
	if want == string(data) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from Variables(); write it anew with: go test ./blockmgr/config -update", document)
	}
	if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTableIsCompleteAndWithoutDoubles(t *testing.T) {
	seen := make(map[string]bool)
	for _, v := range Variables() {
		if seen[v.Name] {
			t.Errorf("%s is in the table twice", v.Name)
		}
		seen[v.Name] = true
		if v.Meaning == "" || !strings.HasSuffix(v.Meaning, ".") {
			t.Errorf("%s: meaning %q is no sentence", v.Name, v.Meaning)
		}
		if read := v.Status == Read; read != (v.Accepts != "") || read != strings.HasSuffix(v.Effect, ".") || !read && (v.Default != "" || v.Used) {
			t.Errorf("%s is %s, takes %q, default %q, used %v: %q", v.Name, v.Status, v.Accepts, v.Default, v.Used, v.Effect)
		}
		if strings.Contains(v.Accepts+v.Meaning+v.Effect, "|") {
			t.Errorf("%s: a bar breaks the document's table", v.Name)
		}
	}
	t.Logf("%d variables", len(seen))
}
