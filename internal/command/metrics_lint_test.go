package command

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// foreignNames begin the names of metrics that are another program's: dashboards for KVBM and
// Dynamo read them as they are.
var foreignNames = regexp.MustCompile(`^(kvbm|dynamo)_`)

// deprecatedHelp is prom.Deprecated with the new name.
var deprecatedHelp = regexp.MustCompile(`^Deprecated, ends with the next release: use (\w+)\.$`)

// TestMetricsFollowPrometheusConventions: what agent and router really expose is clean for
// promlint: base units, _total, help, no type in a name. An old name that is not clean names
// its successor, which is there, and docs/watch.md lists both.
func TestMetricsFollowPrometheusConventions(t *testing.T) {
	y := startGoldenYard(t)
	y.use(t)
	for who, scrape := range map[string]string{"agent": y.ask(t, "/metrics"), "router": y.askRouter(t, http.MethodGet, "/metrics", "")} {
		help := lintMetrics(t, who, scrape)
		if len(help) < 60 {
			t.Errorf("%s: %d families", who, len(help))
		}
		for _, want := range []string{"blockyard_build_info", "go_goroutines", "process_resident_memory_bytes"} {
			if help[want] == "" {
				t.Errorf("%s: no %s", who, want)
			}
		}
	}
}

// lintMetrics reports what promlint finds in a scrape. It returns the help of each family.
func lintMetrics(t *testing.T, who, scrape string) map[string]string {
	t.Helper()
	watch, err := os.ReadFile("../../docs/watch.md")
	if err != nil {
		t.Fatal(err)
	}
	help := helpTexts(scrape)
	problems, err := promlint.New(strings.NewReader(scrape)).Lint()
	if err != nil {
		t.Fatalf("%s: %v", who, err)
	}
	for _, p := range problems {
		if !foreignNames.MatchString(p.Metric) && !deprecatedHelp.MatchString(help[p.Metric]) {
			t.Errorf("%s: %s: %s", who, p.Metric, p.Text)
		}
	}
	for name, text := range help {
		m := deprecatedHelp.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		if help[m[1]] == "" {
			t.Errorf("%s: %s is to be replaced by %s, which is not there", who, name, m[1])
		}
		if line := "| `" + name + "` | `" + m[1] + "`"; !strings.Contains(string(watch), line) {
			t.Errorf("docs/watch.md lacks the old name: %s", line)
		}
	}
	return help
}

// helpTexts returns the help of each metric family of a scrape.
func helpTexts(scrape string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(scrape) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "# HELP "); ok {
			name, text, _ := strings.Cut(rest, " ")
			all[name] = text
		}
	}
	return all
}
