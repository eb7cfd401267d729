package workers_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/blockyard-ai/blockyard/router/workers"
)

func TestParseSpec(t *testing.T) {
	for text, want := range map[string]workers.Spec{
		"http://a:8000":           {URL: "http://a:8000"},
		"HTTP://A:80/":            {URL: "http://a"},
		"https://a:443/base/":     {URL: "https://a/base"},
		"http://[::1]:8000":       {URL: "http://[::1]:8000"},
		"http://a,id=7,role=both": {URL: "http://a", ID: 7},
		"http://a,events=tcp://a:5557,replay=tcp://[::1]:5657,role=prefill,model=m/n,block-size=16,taint=x,taint=y": {
			URL: "http://a", Events: "tcp://a:5557", Replay: "tcp://[::1]:5657", Role: workers.RolePrefill, Model: "m/n",
			BlockSize: 16, Taints: []string{"x", "y"},
		},
	} {
		got, err := workers.ParseSpec(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(workers.Spec{})); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

// TestParseSpecErrors: an error names the key, the value and what is wanted, and shows no
// password.
func TestParseSpecErrors(t *testing.T) {
	long := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(long, []byte("two words"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                                   `"": want http://host:port`,
		"a:8000":                             `"a:8000": want http://host:port`,
		"ftp://a":                            `"ftp://a": want http://host:port`,
		"http://user:secret@a":               "a URL with credentials: want http://host:port",
		"http://a?x=1":                       "want http://host:port",
		"http://a:0":                         `port "0" is not in 1..65535`,
		"http://a:99999":                     `port "99999" is not in 1..65535`,
		"http://a,id":                        `"id": want key=value`,
		"http://a,id=0":                      `id: "0" is not an integer in 1..9223372036854775807`,
		"http://a,id=9223372036854775808":    `id: "9223372036854775808" is not an integer in 1..`,
		"http://a,id=1,id=2":                 "id: is there twice",
		"http://a,role=x":                    `role: "x" is not one of both, prefill, decode`,
		"http://a,block-size=65537":          `block-size: "65537" is not an integer in 1..65536`,
		"http://a,model=":                    "model: 0 bytes, want 1 to 1024",
		"http://a,taint=a b":                 "taints",
		"http://a,events=ipc:///x":           `events: "ipc:///x": want tcp://host:port`,
		"http://a,events=tcp://a":            `events: "tcp://a": want tcp://host:port`,
		"http://a,replay=tcp://a:0":          `replay: "tcp://a:0": want tcp://host:port`,
		"http://a,api-key-file=":             "api-key-file: is empty",
		"http://a,api-key-file=" + long:      "want one line of 1 to 4096 printable ASCII characters",
		"http://a,api-key-file=/nonexistent": "api-key-file: open /nonexistent",
		"http://a,speed=1":                   `"speed" is not one of id, role, model`,
	} {
		_, err := workers.ParseSpec(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestWorkersAreNamedOnce: two specs of one server, or of one id, are an error.
func TestWorkersAreNamedOnce(t *testing.T) {
	for _, pair := range [][2]string{{"http://a:80", "http://a/"}, {"http://a,id=7", "http://b,id=7"}} {
		o := workers.Options{Specs: []workers.Spec{spec(t, pair[0]), spec(t, pair[1])}}
		if _, err := workers.New(o); err == nil || !strings.Contains(err.Error(), "workers[1]") || !strings.Contains(err.Error(), "is there twice") {
			t.Errorf("%v: %v", pair, err)
		}
	}
}
