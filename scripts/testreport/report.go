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

// packageState is what is known of a package whose tests are running.
type packageState struct {
	passed, failed, skipped int
	// notes are what passing tests want to be read: their attributes, and the
	// reasons of those that were skipped.
	notes []string
	// output is kept per top-level test until it has ended; "" is the package's
	// own output.
	output map[string]*bytes.Buffer
}

// reporter turns events into text. It is for one goroutine.
type reporter struct {
	out      io.Writer
	packages map[string]*packageState
	// build holds compiler output by import path until the package that could
	// not be built is reported.
	build map[string]*bytes.Buffer
	tally tally
}

func newReporter(out io.Writer) *reporter {
	return &reporter{out: out, packages: make(map[string]*packageState), build: make(map[string]*bytes.Buffer)}
}

// read consumes in up to its end and returns the counts.
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

// failPackage shows what was not shown yet. A package none of whose tests
// failed counts as a failure itself; so does every test that never ended.
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

// unfinished reports what has started and not ended when the input ends, and
// compiler output that belongs to no package reported so far.
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

// topLevel is the test that a subtest belongs to.
func topLevel(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return name
}
