package lint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// machinePath matches what is true on one machine only: absolute paths below
// somebody's home or working directory, and hosts of private networks.
var machinePath = regexp.MustCompile(`(?:^|[^\w./-])(?:/(?:home|Users|root|work|workspace)/\w` +
	`|[A-Z]:\\Users\\|https?://(?:10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|[\w.-]+\.(?:local|internal|corp|lan)\b))`)

var machineRule = rule{
	name:   "no machine's paths or hosts",
	reason: "a path or host of one machine works nowhere else; use a flag, a variable, or a path relative to the repository",
	check: func(t *tree) []problem {
		var found []problem
		for _, s := range t.sources {
			if slices.Contains([]string{"go.sum", "LICENSE"}, path.Base(s.path)) {
				continue
			}
			for i, line := range strings.Split(string(s.data), "\n") {
				if m := machinePath.FindString(line); m != "" {
					found = append(found, problem{s.path, i + 1, fmt.Sprintf("%q", strings.TrimSpace(m))})
				}
			}
		}
		return found
	},
}
