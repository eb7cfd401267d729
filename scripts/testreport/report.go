package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is one line of "go test -json"; see "go doc test2json".
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output, instead of Package
	Test       string
	Elapsed    float64
	Output     string
	Key, Value string // of an attribute, see testing.T.Attr
}

// tally counts top-level tests and failures outside tests.
type tally struct {
	passed, failed int
}

// packageState is the state of a package whose tests are running.
type packageState struct {
	passed, failed, skipped int
	// notes are shown although the tests passed: attributes of tests, and the reasons of
	// skipped tests.
	notes []string
	// output has the output of each top-level test that has not ended. The key "" has the
	// output of the package.
	output map[string]*bytes.Buffer
}

// reporter writes events as text. It is for one goroutine.
type reporter struct {
	out      io.Writer
	packages map[string]*packageState
	// build has the compiler's output by import path, until the package that does not build
	// is reported.
	build map[string]*bytes.Buffer
	tally tally
}

func newReporter(out io.Writer) *reporter {
	return &reporter{out: out, packages: make(map[string]*packageState), build: make(map[string]*bytes.Buffer)}
}

// read reads in to its end and returns the counts.
func (r *reporter) read(in io.Reader) (tally, error) {
	lines := bufio.NewReader(in)
	events, stray := 0, 0
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			if line[0] == '{' && json.Unmarshal(line, &e) == nil && e.Action != "" {
				events++
				r.handle(&e)
			} else {
				stray++
				fmt.Fprintf(r.out, "%s\n", bytes.TrimRight(line, "\n"))
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return r.tally, fmt.Errorf("test output: %w", err)
		}
	}
	r.unfinished()
	if stray > 0 || events == 0 {
		r.tally.failed++
		fmt.Fprintf(r.out, "FAIL  go test gave %d events and %d other lines\n", events, stray)
	}
	return r.tally, nil
}

func (r *reporter) handle(e *event) {
	switch e.Action {
	case "build-output":
		buffer(r.build, e.ImportPath).WriteString(e.Output)
	case "output":
		if !isProgress(e.Output) {
			buffer(r.state(e.Package).output, topLevel(e.Test)).WriteString(e.Output)
		}
	case "attr":
		p := r.state(e.Package)
		p.notes = append(p.notes, fmt.Sprintf("%s %s: %s", topLevel(e.Test), e.Key, e.Value))
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else if !strings.Contains(e.Test, "/") {
			r.endTest(e)
		}
	}
}

func (r *reporter) endTest(e *event) {
	p := r.state(e.Package)
	switch e.Action {
	case "pass":
		p.passed++
		r.tally.passed++
	case "skip":
		p.skipped++
		reason := strings.TrimSpace(buffer(p.output, e.Test).String())
		p.notes = append(p.notes, fmt.Sprintf("%s skipped: %s", e.Test, reason))
	case "fail":
		p.failed++
		r.tally.failed++
		fmt.Fprintf(r.out, "FAIL  %s %s\n%s", e.Package, e.Test, p.output[e.Test])
	}
	delete(p.output, e.Test)
}

func (r *reporter) endPackage(e *event) {
	p := r.state(e.Package)
	delete(r.packages, e.Package)
	switch {
	case e.Action == "fail":
		r.failPackage(e.Package, p)
	case p.passed+p.skipped == 0:
		fmt.Fprintf(r.out, "ok    %-52s  no tests\n", e.Package)
	case p.skipped > 0:
		fmt.Fprintf(r.out, "ok    %-52s  %4d tests  %6.1fs  %d skipped\n", e.Package, p.passed, e.Elapsed, p.skipped)
	default:
		fmt.Fprintf(r.out, "ok    %-52s  %4d tests  %6.1fs\n", e.Package, p.passed, e.Elapsed)
	}
	for _, note := range p.notes {
		fmt.Fprintf(r.out, "      %s\n", note)
	}
}

// failPackage shows the rest of a failed package's output. It counts each test that never
// ended as a failure, and the package itself when no test failed.
func (r *reporter) failPackage(name string, p *packageState) {
	if p.failed == 0 {
		r.tally.failed++
	}
	fmt.Fprintf(r.out, "FAIL  %s\n", name)
	for path, out := range r.build {
		if path == name || strings.HasPrefix(path, name+" ") || strings.HasPrefix(path, name+"_test ") {
			_, _ = r.out.Write(out.Bytes())
			delete(r.build, path)
		}
	}
	for _, out := range p.output {
		_, _ = r.out.Write(out.Bytes())
	}
}

// unfinished reports the tests and packages that have not ended at the end of the input,
// and the compiler's output of packages that were not reported.
func (r *reporter) unfinished() {
	for name, p := range r.packages {
		fmt.Fprintf(r.out, "FAIL  %s did not finish\n", name)
		r.failPackage(name, p)
	}
	for path, out := range r.build {
		fmt.Fprintf(r.out, "build of %s:\n%s", path, out)
	}
}

func (r *reporter) state(name string) *packageState {
	p := r.packages[name]
	if p == nil {
		p = &packageState{output: make(map[string]*bytes.Buffer)}
		r.packages[name] = p
	}
	return p
}

// isProgress reports whether a line only says that something runs or passed, or
// repeats the verdict of a package.
func isProgress(line string) bool {
	line = strings.TrimLeft(line, " ")
	for _, prefix := range []string{"=== ", "=== ATTR ", "--- PASS: ", "--- SKIP: ", "PASS\n", "FAIL\n", "FAIL\t", "ok  \t"} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

func buffer(m map[string]*bytes.Buffer, key string) *bytes.Buffer {
	b := m[key]
	if b == nil {
		b = new(bytes.Buffer)
		m[key] = b
	}
	return b
}

// topLevel returns the top-level test of a subtest.
func topLevel(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return name
}
