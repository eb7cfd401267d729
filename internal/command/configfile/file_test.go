package configfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func load(t *testing.T, text string) (*File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if f != nil {
		f.Path = "b.yaml"
	}
	return f, err
}

var (
	agentNames  = []string{"cluster", "host-size", "allow-uid", "quota", "discard-host"}
	routerNames = []string{"cluster", "worker", "router_mode"}
)

func TestSectionsWinOverCommonSettings(t *testing.T) {
	f, err := load(t, "cluster: a\nagent:\n  host_size: 64GiB\n  allow-uid: [1000, 1001]\n  quota: {llama: 3}\n  discard-host: true\nrouter:\n  cluster: b\n  worker: [http://a:8000]\n")
	if err != nil {
		t.Fatal(err)
	}
	values := func(section string, known, others []string) map[string]any {
		all, err := f.For(section, known, others)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		for name, v := range all {
			got[name] = []any{v.Any, v.Origin[strings.LastIndex(v.Origin, ":")+1:]}
		}
		return got
	}
	want := map[string]any{
		"cluster": []any{"a", "1"}, "host-size": []any{"64GiB", "3"}, "allow-uid": []any{[]any{1000, 1001}, "4"},
		"quota": []any{map[string]any{"llama": 3}, "5"}, "discard-host": []any{"true", "6"},
	}
	if d := cmp.Diff(want, values("agent", agentNames, routerNames)); d != "" {
		t.Error(d)
	}
	want = map[string]any{"cluster": []any{"b", "8"}, "worker": []any{[]any{"http://a:8000"}, "9"}}
	if d := cmp.Diff(want, values("router", routerNames, agentNames)); d != "" {
		t.Error(d)
	}
}

func TestWrongFilesNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"agent:\n  host-sise: 1GiB\n":                    "b.yaml:2: agent.host-sise: unknown; did you mean host-size?",
		"clutser: a\n":                                   "b.yaml:1: clutser: unknown; did you mean cluster?",
		"agent:\n  host-size: 1GiB\n  host-size: 2GiB\n": "host-size",
		"agent:\n  host_size: 1GiB\n  host-size: 2GiB\n": "is there twice, also at",
		"agent: 3\n":                "b.yaml:1: agent: want settings by name",
		"agent:\n  host-size:\n":    "host-size: has no value",
		"- a\n":                     "want settings by name",
		"agent: {}\n---\nagent: {}": "more than one document",
		"agent: [\n":                "b.yaml",
		"agent: {}\nagent: {}\n":    "twice",
	} {
		f, err := load(t, text)
		if err == nil {
			_, err = f.For("agent", agentNames, routerNames)
		}
		if err == nil {
			t.Errorf("%q was taken", text)
			continue
		}
		got := err.Error()
		if i := strings.Index(got, "b.yaml"); i >= 0 {
			got = got[i:]
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: error %q, want %q", text, got, want)
		}
	}
	if f, err := load(t, "# nothing\n"); err != nil || len(f.sections) != 0 {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := Load("/does/not/exist"); err == nil {
		t.Error("a file that is not there was taken")
	}
}
