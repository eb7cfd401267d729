package recordedtest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

// write writes a file of a test and returns its path.
func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// failingTB records that a helper has ended the test, in place of the test that checks it.
type failingTB struct {
	testing.TB
	failed bool
}

func (f *failingTB) Helper() {}

func (f *failingTB) Fatal(...any) { f.end() }

func (f *failingTB) Fatalf(string, ...any) { f.end() }

func (f *failingTB) end() {
	f.failed = true
	runtime.Goexit()
}

// fails reports whether do ends the test that it gets.
func fails(t *testing.T, do func(tb testing.TB)) bool {
	t.Helper()
	tb := &failingTB{TB: t}
	ended := make(chan struct{})
	go func() { // Fatal ends the goroutine that calls it
		defer close(ended)
		do(tb)
	}()
	<-ended
	return tb.failed
}

func TestVectorsHaveNamesAndBytes(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "golden.txt"), "# a comment\n\nempty \nclear 81a4\nclear2 00ff\n")
	got := recordedtest.Vectors(t, path)
	want := map[string][]byte{"empty": {}, "clear": {0x81, 0xa4}, "clear2": {0, 0xff}}
	if len(got) != len(want) {
		t.Errorf("got %d vectors, want %d: %x", len(got), len(want), got)
	}
	for name, b := range want {
		if g, ok := got[name]; !ok || !bytes.Equal(g, b) {
			t.Errorf("vector %s: %x, want %x", name, g, b)
		}
	}
}

// TestVectorsThatCannotBeReadFail: a test of golden vectors must not pass because the file is
// absent or damaged.
func TestVectorsThatCannotBeReadFail(t *testing.T) {
	dir := t.TempDir()
	for name, path := range map[string]string{
		"absent":      filepath.Join(dir, "absent.txt"),
		"odd digits":  write(t, filepath.Join(dir, "odd.txt"), "clear 81a\n"),
		"not hex":     write(t, filepath.Join(dir, "nothex.txt"), "clear xx\n"),
		"a directory": dir,
	} {
		if !fails(t, func(tb testing.TB) { recordedtest.Vectors(tb, path) }) {
			t.Errorf("%s: the test goes on", name)
		}
	}
}

func TestReadReturnsTheLinesInOrder(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "r.jsonl"),
		`{"kind":"zmq","frames":["00","0001"],"decoded":{"a":1}}`+"\n"+`{"kind":"nats","subject":"kv.events","hex":"81a4","what":"an event"}`+"\n")
	lines := recordedtest.Read(t, path)
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2", len(lines))
	}
	if l := lines[0]; l.Kind != "zmq" || len(l.Frames) != 2 || string(l.Decoded) != `{"a":1}` {
		t.Errorf("first line %+v", l)
	}
	if l := lines[1]; l.Subject != "kv.events" || l.What != "an event" || !bytes.Equal(recordedtest.Unhex(t, l.Hex), []byte{0x81, 0xa4}) {
		t.Errorf("second line %+v", l)
	}
}

// TestRecordingsComeFromTheDirectoryThatIsSet: with recordings ReadDynamo reads them; without
// a directory of recordings, or without the file, it skips the test that asks.
func TestRecordingsComeFromTheDirectoryThatIsSet(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("BLOCKYARD_SHARED", dir)
	skipped := func(do func(t *testing.T)) (skipped bool) {
		t.Run("asks", func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			do(t)
		})
		return skipped
	}
	name := recordedtest.DynamoFiles()[0]
	if !skipped(func(t *testing.T) { recordedtest.Dir(t) }) {
		t.Error("a directory without recordings is used")
	}
	path := write(t, filepath.Join(dir, "golden", "dynamo-1.6", name), `{"kind":"zmq"}`+"\n")
	if skipped(func(t *testing.T) {
		if got := recordedtest.Dir(t); got != dir {
			t.Errorf("recordings in %s, want %s", got, dir)
		}
		if lines := recordedtest.ReadDynamo(t, name); len(lines) != 1 || lines[0].Kind != "zmq" {
			t.Errorf("got %+v", lines)
		}
	}) {
		t.Error("a recording that is there is skipped")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if !skipped(func(t *testing.T) { recordedtest.ReadDynamo(t, name) }) {
		t.Error("an absent recording is not skipped")
	}
}

// TestRecordingsLieBesideTheRepository: without a directory that is set, recordings are in
// "shared" beside the directory with go.mod, from any package of the module.
func TestRecordingsLieBesideTheRepository(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "repository", "go.mod"), "module x\n")
	write(t, filepath.Join(dir, "repository", "a", "b", "b.go"), "package b\n")
	write(t, filepath.Join(dir, "shared", "golden", "README"), "")
	t.Setenv("BLOCKYARD_SHARED", "")
	t.Chdir(filepath.Join(dir, "repository", "a", "b"))
	if got, want := recordedtest.Dir(t), filepath.Join(dir, "shared"); got != want {
		t.Errorf("recordings in %s, want %s", got, want)
	}
}
