package command

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/pebbe/zmq4"
)

// Version is the command "version".
type Version struct{}

// build is the program that runs.
type build Program

// Run writes one line for the binary and one for each thing that it depends on
// and does not contain in source form.
func (Version) Run(b build, stdout io.Writer) error {
	info, _ := debug.ReadBuildInfo()
	major, minor, patch := zmq4.Version()
	_, err := fmt.Fprintf(stdout, "%-9s %s\ngo        %s %s/%s\nlibzmq    %d.%d.%d\n",
		b.Name, versionString(b.Version, info), runtime.Version(), runtime.GOOS, runtime.GOARCH, major, minor, patch)
	if err != nil {
		return fmt.Errorf("write version: %w", err)
	}
	return nil
}

// versionString is the linker's version, else the module's, each followed by
// the commit when the build recorded one. info may be nil.
func versionString(linked string, info *debug.BuildInfo) string {
	v := linked
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if v == "" && info.Main.Version != "(devel)" {
		v = info.Main.Version
	}
	if v == "" {
		v = "devel"
	}
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if commit == "" {
		return v
	}
	return fmt.Sprintf("%s (commit %s%s)", v, commit, modified)
}
