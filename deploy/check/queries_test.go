package check

import (
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// golden are the metric families that a live agent, router and front door expose: tests of
// internal/command compare each list with a scrape.
var golden = []string{"agent-metrics.txt", "router-metrics.txt", "door-metrics.txt"}

// targetLabels are labels that Prometheus adds.
var targetLabels = []string{"instance", "job", "node", "namespace", "pod"}

// family is a metric family: its type, and the label sets of its samples.
type family struct {
	kind, help string
	samples    []map[string]string // a value is empty where it is not fixed
}

// exposed returns the families of the golden lists, those of Go and of the process, and
// Prometheus' own.
func exposed(t *testing.T) map[string]*family {
	t.Helper()
	all := map[string]*family{
		"up": {kind: "gauge"}, "ALERTS": {kind: "gauge", samples: []map[string]string{{"alertname": "", "alertstate": ""}}},
		// The test's machine may have no disk that tells its wear; a test of agent has the family.
		"blockyard_disk_wear_ratio":     {kind: "gauge", samples: []map[string]string{{"device": ""}}},
		"process_resident_memory_bytes": {kind: "gauge"}, "go_memstats_heap_inuse_bytes": {kind: "gauge"},
	}
	head := regexp.MustCompile(`^(\w+) (counter|gauge|histogram): (.*)$`)
	label := regexp.MustCompile(`(\w+)(?:="([^"]*)")?`)
	for _, name := range golden {
		b, err := os.ReadFile(filepath.Join("../../internal/command/testdata/golden", name))
		if err != nil {
			t.Fatal(err)
		}
		var current *family
		for line := range strings.Lines(string(b)) {
			line = strings.TrimRight(line, "\n")
			if m := head.FindStringSubmatch(line); m != nil {
				current = &family{kind: m[2], help: m[3]}
				all[m[1]] = current
				continue
			}
			sample := map[string]string{}
			for _, m := range label.FindAllStringSubmatch(line, -1) {
				sample[m[1]] = m[2]
			}
			current.samples = append(current.samples, sample)
		}
	}
	if len(all) < 150 {
		t.Fatalf("%d families", len(all))
	}
	return all
}

// checkQuery reports each metric of a PromQL query that is not exposed, is deprecated, or has no
// sample that the query's labels select.
func checkQuery(t testing.TB, all map[string]*family, where, query string) (metrics int) {
	t.Helper()
	// Grafana's variables.
	query = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".+").Replace(query)
	e, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v: %s", where, err, query)
		return 0
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		metrics++
		name := v.Name
		f := all[name]
		if f == nil {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, ok := strings.CutSuffix(name, suffix); ok && all[base] != nil && all[base].kind == "histogram" {
					f = all[base]
				}
			}
		}
		switch {
		case f == nil:
			t.Errorf("%s: no program exposes %s", where, name)
		case strings.HasPrefix(f.help, "Deprecated"):
			t.Errorf("%s: %s: %s", where, name, f.help)
		default:
			checkMatchers(t, f, where, name, v.LabelMatchers)
		}
		return nil
	})
	return metrics
}

// checkMatchers reports a matcher of a label that the family lacks, and a value of a closed label
// that no sample has. A regular expression must have a sample for each of its alternatives.
func checkMatchers(t testing.TB, f *family, where, name string, matchers []*labels.Matcher) {
	t.Helper()
	for _, m := range matchers {
		if m.Name == labels.MetricName || slices.Contains(targetLabels, m.Name) {
			continue
		}
		if !slices.ContainsFunc(f.samples, func(s map[string]string) bool { _, ok := s[m.Name]; return ok }) {
			t.Errorf("%s: %s has no label %s", where, name, m.Name)
			continue
		}
		if m.Type != labels.MatchEqual && m.Type != labels.MatchRegexp {
			continue
		}
		for _, value := range strings.Split(m.Value, "|") {
			if !slices.ContainsFunc(f.samples, func(s map[string]string) bool {
				got, ok := s[m.Name]
				return ok && (got == "" || got == value)
			}) {
				t.Errorf("%s: %s has no sample with %s=%q", where, name, m.Name, value)
			}
		}
	}
}

// TestDashboardsAskForMetricsThatAreThere: each query of each panel parses, and asks for metrics
// and labels that the programs expose.
func TestDashboardsAskForMetricsThatAreThere(t *testing.T) {
	all := exposed(t)
	files, err := filepath.Glob(filepath.Join(chartDir, "dashboards", "*.json"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%d dashboards, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var d struct {
				UID, Title string
				Panels     []struct {
					ID      int
					Title   string
					Targets []struct{ Expr string }
				}
			}
			if err := json.Unmarshal(b, &d); err != nil {
				t.Fatal(err)
			}
			ids, queries, metrics := map[int]bool{}, 0, 0
			for _, p := range d.Panels {
				if ids[p.ID] {
					t.Errorf("two panels have the id %d", p.ID)
				}
				ids[p.ID] = true
				for _, q := range p.Targets {
					queries++
					metrics += checkQuery(t, all, p.Title, q.Expr)
				}
			}
			if queries < 10 || d.UID == "" {
				t.Errorf("%d queries, uid %q", queries, d.UID)
			}
			t.Logf("%d queries, %d selectors", queries, metrics)
		})
	}
}

// TestAlertsAskForMetricsThatAreThere: Prometheus takes the rules, each asks for metrics that the
// programs expose, and each has a runbook.
func TestAlertsAskForMetricsThatAreThere(t *testing.T) {
	file := filepath.Join(chartDir, "alerts.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(b, false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	book, err := os.ReadFile("../../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	all, alerts := exposed(t), map[string]bool{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			alerts[r.Alert] = true
			checkQuery(t, all, r.Alert, r.Expr)
			if !strings.Contains(string(book), "\n### "+r.Alert+"\n") {
				t.Errorf("%s: docs/runbooks.md has no section", r.Alert)
			}
			if want := "docs/runbooks.md#" + strings.ToLower(r.Alert); !strings.HasSuffix(r.Annotations["runbook_url"], want) {
				t.Errorf("%s: runbook_url %q, want one that ends with %s", r.Alert, r.Annotations["runbook_url"], want)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: no summary or description", r.Alert)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (\w+)$`).FindAllStringSubmatch(string(book), -1) {
		if !alerts[m[1]] {
			t.Errorf("docs/runbooks.md has a section for %s, which is no alert", m[1])
		}
	}
	t.Logf("%d alerts", len(alerts))
	if promtool, err := exec.LookPath("promtool"); err == nil {
		if out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
}

// TestQueriesOfOtherMetricsAreFound: the checks see a metric, a label and a value that are not
// there.
func TestQueriesOfOtherMetricsAreFound(t *testing.T) {
	all := exposed(t)
	for _, query := range []string{
		"blockyard_nothing", `blockyard_pool_slots{level="disk"}`, `blockyard_pool_slots{tier="tape"}`,
		`rate(blockyard_router_overhead_total_ms_sum[5m])`, "sum(",
	} {
		probe := &recorder{TB: t}
		checkQuery(probe, all, "probe", query)
		if probe.failed == 0 {
			t.Errorf("%s was taken", query)
		}
	}
}

// recorder counts the failures of a check.
type recorder struct {
	testing.TB
	failed int
}

func (r *recorder) Errorf(string, ...any) { r.failed++ }

// TestChartHasTheAlerts: the PrometheusRule has what alerts.yaml has.
func TestChartHasTheAlerts(t *testing.T) {
	files, err := render(map[string]any{"monitoring": map[string]any{"alerts": map[string]any{"enabled": true}}})
	if err != nil {
		t.Fatal(err)
	}
	var rendered struct {
		Spec struct {
			Groups []struct{ Rules []any }
		}
	}
	for _, text := range separator.Split(files["blockyard/templates/monitoring.yaml"], -1) {
		if strings.Contains(text, "PrometheusRule") {
			if err := yaml.Unmarshal([]byte(text), &rendered); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(rendered.Spec.Groups) != 2 || len(rendered.Spec.Groups[0].Rules) < 10 {
		t.Errorf("%d groups", len(rendered.Spec.Groups))
	}
}
