package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReporterCountsAndShowsWhatFailed(t *testing.T) {
	const (
		passing = `{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood/sub","Elapsed":0}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0}
{"Action":"attr","Package":"m/a","Test":"TestGood","Key":"decoded","Value":"76 frames"}
{"Action":"output","Package":"m/a","Test":"TestSkipped","Output":"    a_test.go:9: no recordings\n"}
{"Action":"skip","Package":"m/a","Test":"TestSkipped","Elapsed":0}
{"Action":"pass","Package":"m/a","Elapsed":0.5}
`
		failing = `{"Action":"output","Package":"m/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/b","Test":"TestBad/fine","Output":"    --- PASS: TestBad/fine (0.00s)\n"}
{"Action":"output","Package":"m/b","Test":"TestBad/sub","Output":"detail of sub\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad/sub","Elapsed":0}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"detail of bad\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":0}
{"Action":"pass","Package":"m/b","Test":"TestFine","Elapsed":0}
{"Action":"output","Package":"m/b","Output":"FAIL\n"}
{"Action":"fail","Package":"m/b","Elapsed":1}
`
		unbuilt = `{"ImportPath":"m/c [m/c.test]","Action":"build-output","Output":"c.go:1: syntax error\n"}
{"ImportPath":"m/c [m/c.test]","Action":"build-fail"}
{"Action":"fail","Package":"m/c","Elapsed":0,"FailedBuild":"m/c [m/c.test]"}
`
		panicking = `{"Action":"run","Package":"m/d","Test":"TestPanics"}
{"Action":"output","Package":"m/d","Test":"TestPanics","Output":"panic: oh\n"}
{"Action":"fail","Package":"m/d","Elapsed":0}
`
		killed = `{"Action":"run","Package":"m/e","Test":"TestLong"}
{"Action":"output","Package":"m/e","Test":"TestLong","Output":"started\n"}
`
	)
	for _, c := range []struct {
		name, in string
		want     tally
		shown    []string
		hidden   []string
	}{
		{"pass", passing, tally{1, 0}, []string{"ok    m/a", "1 tests", "1 skipped", "TestGood decoded: 76 frames", "TestSkipped skipped: a_test.go:9: no recordings"}, []string{"chatter"}},
		{"test fails", failing, tally{1, 1}, []string{"FAIL  m/b TestBad", "detail of sub", "detail of bad"}, []string{"=== RUN", "--- PASS"}},
		{"build fails", unbuilt, tally{0, 1}, []string{"FAIL  m/c", "syntax error"}, nil},
		{"panic", panicking, tally{0, 1}, []string{"FAIL  m/d", "panic: oh"}, nil},
		{"killed", killed, tally{0, 1}, []string{"m/e did not finish", "started"}, nil},
		{"all", passing + failing + unbuilt + panicking, tally{2, 3}, []string{"panic: oh", "detail of bad"}, []string{"chatter"}},
		{"go command complains", "no required module provides package\n", tally{0, 1}, []string{"no required module"}, nil},
		{"complaint beside events", passing + "go: warning\n", tally{1, 1}, []string{"go: warning"}, nil},
		{"nothing ran", "", tally{0, 1}, []string{"0 events"}, nil},
	} {
		var out bytes.Buffer
		got, err := newReporter(&out).read(strings.NewReader(c.in))
		if err != nil || got != c.want {
			t.Errorf("%s: counted %+v, %v; want %+v", c.name, got, err, c.want)
		}
		for _, s := range c.shown {
			if !strings.Contains(out.String(), s) {
				t.Errorf("%s: %q is not shown in:\n%s", c.name, s, out.String())
			}
		}
		for _, s := range c.hidden {
			if strings.Contains(out.String(), s) {
				t.Errorf("%s: %q is shown in:\n%s", c.name, s, out.String())
			}
		}
	}
}

func TestTalliesAddUpInOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tally")
	for _, c := range []tally{{3, 0}, {0, 2}} {
		if err := appendTally(path, c); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "3 0\n0 2\n" {
		t.Errorf("tally file holds %q, %v", got, err)
	}
	if err := appendTally("", tally{}); err == nil {
		t.Error("a tally without a file was accepted")
	}
}
