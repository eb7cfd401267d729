package doctor

import (
	"slices"
	"strings"
	"testing"
)

// TestVersionsThatAreNoFault: equal releases, however they are written, builds between releases,
// parts that do not tell their version, engines that have left, and connectors of others.
func TestVersionsThatAreNoFault(t *testing.T) {
	for name, inject := range map[string]func(*yard){
		"a build between releases": func(y *yard) { replace(y.agent, "/metrics", "v0.2.0", "v0.1.0-3-g1a2b3c4") },
		"devel":                    func(y *yard) { replace(y.router, "/metrics", "v0.2.0", "devel") },
		"no version":               func(y *yard) { delete(y.router, "/metrics") },
		"other metrics":            func(y *yard) { y.router["/metrics"] = healthyMetrics },
		"the agent does not tell":  func(y *yard) { delete(y.agent, "/metrics") },
		"a connector of others":    func(y *yard) { replace(y.agent, "/v1/stats", "blockyard 0.2.0", "mine 7.0.0") },
		"no connector's version":   func(y *yard) { replace(y.agent, "/v1/stats", `"connector":"blockyard 0.2.0",`, "") },
		"a connector that has left": func(y *yard) {
			replace(y.agent, "/v1/stats", `"connectors":[`, `"connectors":[{"worker":"7","rank":0,"role":"worker","connected":0,"connector":"blockyard 0.1.0"},`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			inject(y)
			if ids, report := y.diagnose(); len(ids) > 0 {
				t.Errorf("found %q:\n%s", ids, report)
			}
		})
	}
}

// TestVersionsNameTheirParts: the finding has each part with its version, and says which to replace.
func TestVersionsNameTheirParts(t *testing.T) {
	y := newYard(t)
	replace(y.agent, "/metrics", "v0.2.0", "v0.1.0")
	ids, report := y.diagnose()
	if !slices.Equal(ids, []string{"versions-differ"}) {
		t.Fatalf("found %q", ids)
	}
	for _, want := range []string{"v0.1.0 (agent n1), v0.2.0 (connector of worker 7/0, scheduler; router ", "replace the parts of v0.1.0"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
}

func TestReleasesThatWorkTogether(t *testing.T) {
	for _, c := range []struct {
		older, newer string
		want         bool
	}{
		{"v0.1.0", "v0.1.9", true}, {"0.1.0", "v0.2.3", true}, {"v0.1.0", "v0.3.0", false}, {"v0.9.1", "v1.0.0", true},
		{"v0.9.1", "v1.1.0", false}, {"v0.9.1", "v2.0.0", false}, {"v1.9.0", "v1.10.0", true},
	} {
		older, ok := parseRelease(c.older)
		newer, known := parseRelease(c.newer)
		if !ok || !known || older.compare(newer) >= 0 || older.worksWith(newer) != c.want {
			t.Errorf("%s and %s: parsed %v %v, work together %v, want %v", c.older, c.newer, ok, known, older.worksWith(newer), c.want)
		}
	}
	for _, version := range []string{"", "devel", "unknown", "v1.2", "v1.2.3-rc1", "1.2.3.4", "v99999999999999999999.0.0"} {
		if r, ok := parseRelease(version); ok {
			t.Errorf("%q is the release %v", version, r)
		}
	}
}
