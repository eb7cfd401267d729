package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// release runs release.sh where there is no compiler for a foreign platform. It returns what the
// script printed before it ended with an error.
func release(t *testing.T, environ []string, args ...string) string {
	t.Helper()
	if err := exec.Command("git", "rev-parse", "HEAD").Run(); err != nil {
		t.Skip("not a git checkout")
	}
	tools := t.TempDir()
	for _, name := range []string{"bash", "dirname", "git", "go"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(path, filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(tools, "bash"), append([]string{"../release.sh"}, args...)...)
	cmd.Env = append([]string{"PATH=" + tools, "HOME=" + os.Getenv("HOME")}, environ...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("release.sh %q made a release:\n%s", args, out)
	}
	return string(out)
}

const someone = "BUILDER_ID=https://ci.example/builders/1"

// TestReleaseLacksNoPlatformInSilence: release.sh names a platform that it cannot build, and builds
// nothing unless a flag lets it leave platforms out.
func TestReleaseLacksNoPlatformInSilence(t *testing.T) {
	out := release(t, []string{someone}, "v0.0.0-test")
	if !strings.Contains(out, "skip  linux/") || !strings.Contains(out, "--allow-skip") {
		t.Errorf("got\n%s", out)
	}
	if _, err := os.Stat("../../dist/v0.0.0-test"); err == nil {
		t.Error("the release has a directory")
	}
}

// TestReleaseNeedsABuilder: nobody else can say who builds.
func TestReleaseNeedsABuilder(t *testing.T) {
	for want, args := range map[string][]string{"BUILDER_ID": {"--allow-skip", "v0.0.0-test"}, "VERSION": {"--allow-skip"}, "--all": {"--all", "v0.0.0-test"}} {
		if out := release(t, nil, args...); !strings.Contains(out, want) {
			t.Errorf("%q: got\n%s", args, out)
		}
	}
}
