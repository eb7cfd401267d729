package reload_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/reload"
)

// write replaces a file as tools do: a new file under the old name.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// parse joins the contents and refuses "bad".
func parse(contents [][]byte) (string, error) {
	var all []string
	for _, c := range contents {
		if string(c) == "bad" {
			return "", errors.New("content is bad")
		}
		all = append(all, string(c))
	}
	return strings.Join(all, "+"), nil
}

// A changed file is seen within a second. A bad or missing file keeps the last good value
// and is reported once.
func TestGet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
		write(t, one, "a")
		write(t, two, "b")
		var failed []string
		f, err := reload.Open([]string{one, two}, parse, func(err error) { failed = append(failed, err.Error()) })
		if err != nil {
			t.Fatal(err)
		}
		expect := func(want string) {
			t.Helper()
			for range 3 {
				time.Sleep(time.Second)
				if got := f.Get(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		}
		expect("a+b")
		write(t, two, "c")
		if got := f.Get(); got != "a+b" {
			t.Errorf("got %q less than a second after the last look", got)
		}
		expect("a+c")
		write(t, one, "bad")
		expect("a+c")
		write(t, one, "d")
		expect("d+c")
		if err := os.Remove(two); err != nil {
			t.Fatal(err)
		}
		expect("d+c")
		write(t, two, "e")
		expect("d+e")
		if len(failed) != 2 || failed[0] != "content is bad" || !strings.Contains(failed[1], two) {
			t.Errorf("reported %q, want the bad content and the missing file once each", failed)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	write(t, bad, "bad")
	for path, want := range map[string]string{bad: "content is bad", filepath.Join(dir, "none"): "no such file", dir: "not a regular file"} {
		if _, err := reload.Open([]string{path}, parse, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
}
