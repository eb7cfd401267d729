package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/command"
	"github.com/blockyard-ai/blockyard/lab/demo"
)

func parseDemo(t *testing.T, args ...string) demo.Options {
	t.Helper()
	var c demoCmd
	parser, err := kong.New(&c, demoVars())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c.options(new(bytes.Buffer))
}

func TestDemoFlagsOverrideTheDefaultsOfTheirWorkload(t *testing.T) {
	for _, c := range []struct {
		args  string
		block int
		host  uint64
	}{
		{"", 16, demo.Defaults("", 0).HostBytes},
		{"--trace=x.jsonl", 128, demo.Defaults("x.jsonl", 0).HostBytes},
		{"--trace=x.jsonl --block-size=32 --host-size=4MiB", 32, 4 << 20},
	} {
		o := parseDemo(t, strings.Fields(c.args)...)
		if o.BlockSize != c.block || o.HostBytes != c.host {
			t.Errorf("demo %s: block size %d, host %d; want %d, %d", c.args, o.BlockSize, o.HostBytes, c.block, c.host)
		}
	}
}

func TestSelftestRefusesFlagsThatItDoesNotHeed(t *testing.T) {
	for args, want := range map[string]string{
		"--selftest --nodes=3":                      "--nodes",
		"--limit=5 --selftest --keep-logs --seed=2": "--requests, --seed",
		"--selftest --only=all --report=x":          "--only",
	} {
		status, _, stderr := runLab(t, strings.Fields("demo "+args)...)
		want = "blockyard: demo: --selftest: does not take " + want + ", only --dir, --report and --keep-logs\n"
		if status != command.ExitUsage || stderr != want {
			t.Errorf("demo %s: status %d, %q; want %d, %q", args, status, stderr, command.ExitUsage, want)
		}
	}
	var c demoCmd
	parser, err := kong.New(&c, demoVars())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(strings.Fields("--selftest --dir=d --report=r --keep-logs")); err != nil {
		t.Errorf("flags that it does heed: %v", err)
	}
}
