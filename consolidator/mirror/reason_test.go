package mirror

import (
	"regexp"
	"testing"
)

func TestEveryDropReasonHasAName(t *testing.T) {
	seen := map[string]bool{}
	for r := range numDropReasons {
		name := dropReasons[r].name
		if seen[name] || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(name) {
			t.Errorf("reason %d: name %q", r, name)
		}
		seen[name] = true
	}
}
