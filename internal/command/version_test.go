package command

import (
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionNamesWhatTheBinaryIsLinkedWith(t *testing.T) {
	var out strings.Builder
	if err := (Version{}).Run(build{Name: "blockyard"}, &out); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^blockyard \S.*\ngo        go1\.\d+\S* \w+/\w+\nlibzmq    4\.\d+\.\d+\n$`)
	if !want.MatchString(out.String()) {
		t.Errorf("got %q, want a match of %s", out.String(), want)
	}
}

func TestVersionStringPrefersTheLinkersVersion(t *testing.T) {
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, c := range []struct {
		name, linked string
		info         *debug.BuildInfo
		want         string
	}{
		{"nothing known", "", nil, "devel"},
		{"plain go build", "", build("(devel)"), "devel"},
		{"go install", "", build("v1.2.3"), "v1.2.3"},
		{"make build", "v1.3.0", build("v1.2.3"), "v1.3.0"},
		{"commit", "v1.3.0", build("(devel)", commit), "v1.3.0 (commit 0123456789ab)"},
		{"dirty tree", "", build("(devel)", commit, modified), "devel (commit 0123456789ab, modified)"},
	} {
		if got := versionString(c.linked, c.info); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
