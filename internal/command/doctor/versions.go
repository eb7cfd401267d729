package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// release is the version of a release: v0.2.1 has major 0, minor 2 and patch 1.
type release struct{ major, minor, patch int }

var (
	releaseForm = regexp.MustCompile(`^v?\d{1,6}\.\d{1,6}\.\d{1,6}$`)
	buildInfo   = regexp.MustCompile(`(?m)^blockyard_build_info\{[^}]*\bversion="([^"]*)"`)
)

// parseRelease returns the release of a version. ok is false for a build between releases, such as
// devel or v0.1.0-3-g1a2b3c4: nothing is known of what such a build works with.
func parseRelease(version string) (r release, ok bool) {
	if !releaseForm.MatchString(version) {
		return release{}, false
	}
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &r.major, &r.minor, &r.patch)
	return r, err == nil
}

// String implements fmt.Stringer.
func (r release) String() string { return fmt.Sprintf("v%d.%d.%d", r.major, r.minor, r.patch) }

// compare orders releases by age.
func (r release) compare(o release) int {
	return cmp.Or(cmp.Compare(r.major, o.major), cmp.Compare(r.minor, o.minor), cmp.Compare(r.patch, o.patch))
}

// worksWith reports whether docs/upgrade.md lets parts of r and of the later release o run together:
// o's previous release has the minor version before. Before o's first minor version came some release
// of the major version before.
func (r release) worksWith(o release) bool {
	if r.major == o.major {
		return o.minor-r.minor <= 1
	}
	return o.major-r.major == 1 && o.minor == 0
}

// buildVersion returns the version in a server's metrics; "" when the server does not tell.
func buildVersion(ctx context.Context, server *inspect.Server) string {
	body, err := server.Text(ctx, "/metrics")
	if err != nil {
		return ""
	}
	if m := buildInfo.FindSubmatch(body); m != nil {
		return string(m[1])
	}
	return ""
}

// compareVersions finds parts of different releases.
func (c *Command) compareVersions() {
	parts := make(map[release][]string)
	add := func(version, who string) {
		if r, ok := parseRelease(version); ok {
			parts[r] = append(parts[r], who)
		}
	}
	if a := c.seen.agent; a != nil {
		add(a.version, "agent "+a.Node)
		for _, r := range a.Connectors {
			if version, ours := strings.CutPrefix(r.Connector, "blockyard "); ours && r.Connected > 0 {
				add(version, fmt.Sprintf("connector of worker %s/%d, %s", r.Worker, r.Rank, r.Role))
			}
		}
	}
	if r := c.seen.router; r != nil {
		add(r.version, "router "+natssource.WithoutCredentials(c.Router))
	}
	if len(parts) < 2 {
		return
	}
	order := slices.SortedFunc(maps.Keys(parts), release.compare)
	var each []string
	for _, r := range order {
		each = append(each, fmt.Sprintf("%s (%s)", r, strings.Join(parts[r], "; ")))
	}
	oldest, newest := order[0], order[len(order)-1]
	id, change := "versions-differ", "end the upgrade: replace the parts of "+oldest.String()+"; docs/upgrade.md"
	if !oldest.worksWith(newest) {
		id, change = "versions-apart", "go through the releases between "+oldest.String()+" and "+newest.String()+", or end the upgrade of all parts; docs/upgrade.md"
	}
	c.found(id, strings.Join(parts[oldest], "; "), change, "%s", strings.Join(each, ", "))
}
