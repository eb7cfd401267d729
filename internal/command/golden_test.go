package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/golden"
)

// TestGoldenHelp: commands, flags, variables, defaults and their help stay.
func TestGoldenHelp(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	for _, command := range []string{"", "agent", "router", "connector-config", "inspect", "top", "admin", "admin pin", "admin evict", "admin reset", "admin drain", "doctor", "version"} {
		var out, errs bytes.Buffer
		if status := Product("").Run(t.Context(), append(strings.Fields(command), "--help"), &out, &errs); status != 0 || errs.Len() > 0 {
			t.Fatalf("%s --help: status %d, %s", command, status, errs.String())
		}
		name := strings.ReplaceAll(strings.TrimSpace("blockyard "+command), " ", "-")
		golden.Compare(t, "help/"+name+".txt", out.String())
	}
}

// TestGoldenMetricsAndAnswers: metric families keep their names, types, labels and help,
// JSON answers their keys and the types behind them. Three families are not among them:
// nothing is dropped here, and nothing measures what a request costs besides its tokens.
func TestGoldenMetricsAndAnswers(t *testing.T) {
	y := startGoldenYard(t)
	y.use(t)
	golden.Compare(t, "agent-metrics.txt", families(t, y.ask(t, "/metrics")))
	golden.Compare(t, "router-metrics.txt", families(t, y.askRouter(t, http.MethodGet, "/metrics", "")))
	for _, name := range []string{"stats", "status"} {
		golden.Compare(t, "agent-"+name+".txt", shape(t, y.ask(t, "/v1/"+name)))
	}
	for _, name := range []string{"workers", "feeds", "sources", "agents"} {
		golden.Compare(t, "router-"+name+".txt", shape(t, y.askRouter(t, http.MethodGet, "/v1/"+name, "")))
	}
}

// closedLabels returns the labels whose values are as fixed as the names of families.
func closedLabels() []string {
	return []string{"counter", "gauge", "kind", "measure", "output", "part", "path", "role", "stage", "state", "tier"}
}

var (
	sampleForm = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*?)(_bucket|_sum|_count)?(?:\{(.*)\})? \S+$`)
	labelForm  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
)

// families lists the metric families of a scrape: name, type and help, and below these
// the labels of their samples. It leaves out what Go and the operating system tell.
func families(t *testing.T, scrape string) string {
	t.Helper()
	heads, types, labels := map[string]string{}, map[string]string{}, map[string][]string{}
	for line := range strings.Lines(scrape) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			heads[name] = help
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			types[name] = kind
			continue
		}
		m := sampleForm.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no sample of a metric: %q", line)
		}
		name := m[1]
		if _, histogram := types[name]; !histogram {
			name += m[2]
		}
		labels[name] = append(labels[name], labelsOf(m[3]))
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		fmt.Fprintf(&b, "%s %s: %s\n", name, types[name], heads[name])
		for _, l := range slices.Compact(slices.Sorted(slices.Values(labels[name]))) {
			if l != "" {
				fmt.Fprintf(&b, "\t%s\n", l)
			}
		}
	}
	return b.String()
}

// labelsOf returns the labels of a sample with the values of closed ones.
func labelsOf(text string) string {
	var all []string
	for _, m := range labelForm.FindAllStringSubmatch(text, -1) {
		if slices.Contains(closedLabels(), m[1]) {
			all = append(all, m[0])
		} else {
			all = append(all, m[1])
		}
	}
	return strings.Join(all, " ")
}

// shape lists the paths of keys in a JSON text with the types of what lies there.
func shape(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	found := map[string]bool{}
	addShape(found, "$", value)
	return strings.Join(slices.Sorted(maps.Keys(found)), "\n") + "\n"
}

func addShape(found map[string]bool, path string, value any) {
	kind := ""
	switch v := value.(type) {
	case map[string]any:
		kind = "object"
		for key, inner := range v {
			addShape(found, path+"."+key, inner)
		}
	case []any:
		kind = "array"
		for _, inner := range v {
			addShape(found, path+"[]", inner)
		}
	case string:
		kind = "string"
	case float64:
		kind = "number"
	case bool:
		kind = "boolean"
	case nil:
		kind = "null"
	}
	found[path+" "+kind] = true
}
