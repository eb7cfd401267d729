package command

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// testRoot is a command line with the shapes that the real one has: a command
// that fails or works at run time, a size, a required flag and a hidden command.
type testRoot struct {
	Work   workCmd `cmd:"" help:"Do some work."`
	Hidden Version `cmd:"" hidden:""`
}

type workCmd struct {
	HostSize bytesize.Size `default:"1GiB" help:"Size of the host tier."`
	Name     string        `required:"" help:"Name of the work."`
	Fail     bool          `help:"Fail."`
}

func (c workCmd) Run(ctx context.Context) error {
	if c.Fail {
		return errors.Join(errors.New("first reason"), errors.New("second reason"))
	}
	return ctx.Err()
}

func runTest(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = Program{Name: "blockyard", Root: new(testRoot)}.Run(ctx, args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestEveryErrorIsOneLineAndHasItsStatus(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name   string
		ctx    context.Context
		args   []string
		status int
		want   []string
	}{
		{"no command", t.Context(), nil, ExitUsage, []string{"work"}},
		{"unknown command", t.Context(), []string{"play"}, ExitUsage, []string{"play"}},
		{"unknown flag", t.Context(), []string{"work", "--name=x", "--colour=red"}, ExitUsage, []string{"--colour"}},
		{"missing flag", t.Context(), []string{"work"}, ExitUsage, []string{"--name"}},
		{"bad size", t.Context(), []string{"work", "--name=x", "--host-size=12QQ"}, ExitUsage, []string{"--host-size", `"12QQ"`, "GiB"}},
		{"failed work", t.Context(), []string{"work", "--name=x", "--fail"}, ExitFailed, []string{"first reason; second reason"}},
		{"context reaches the command", canceled, []string{"work", "--name=x"}, ExitFailed, []string{"canceled"}},
	} {
		status, stdout, stderr := runTest(c.ctx, c.args...)
		if status != c.status {
			t.Errorf("%s: status %d, want %d", c.name, status, c.status)
		}
		if stdout != "" {
			t.Errorf("%s: wrote %q to standard output", c.name, stdout)
		}
		if !strings.HasPrefix(stderr, "blockyard: ") || strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") {
			t.Errorf("%s: standard error is %q, want one line that begins with \"blockyard: \"", c.name, stderr)
		}
		for _, w := range c.want {
			if !strings.Contains(stderr, w) {
				t.Errorf("%s: %q does not say %q", c.name, stderr, w)
			}
		}
	}
}

func TestHelpGoesToStandardOutputAndSucceeds(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"work", "--help"}} {
		status, stdout, stderr := runTest(t.Context(), args...)
		if status != 0 || stderr != "" {
			t.Errorf("%v: status %d, standard error %q; want 0 and nothing", args, status, stderr)
		}
		if !strings.Contains(stdout, "Usage: blockyard") || strings.Contains(stdout, "hidden") {
			t.Errorf("%v: help is %q, want usage without hidden commands", args, stdout)
		}
	}
}

func TestGoodCommandIsSilent(t *testing.T) {
	status, stdout, stderr := runTest(t.Context(), "work", "--name=x")
	if status != 0 || stdout != "" || stderr != "" {
		t.Errorf("got status %d, %q, %q; want 0 and nothing", status, stdout, stderr)
	}
}
