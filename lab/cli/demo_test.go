package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
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

// runDemo runs the real command line with flags that it must refuse, or that ask
// for help.
func runDemo(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = New("").Run(t.Context(), append([]string{"demo"}, args...), &out, &errs)
	return status, out.String(), errs.String()
}

// A zero must not be taken for "not given".
func TestDemoRefusesBadValuesAsUsage(t *testing.T) {
	for _, flag := range []string{
		"--block-size=0", "--device-blocks=0", "--requests=0", "--host-size=0", "--disk-size=0", "--nodes=0", "--engines=0",
		"--prefill-rate=0", "--speed-up=0", "--speed-up=-1", "--drop-frames=-1",
	} {
		status, _, stderr := runDemo(t, flag)
		want := "blockyard: demo: " + strings.Replace(flag, "=", " ", 1) + ": want "
		if status != command.ExitUsage || !strings.HasPrefix(stderr, want) {
			t.Errorf("demo %s: status %d, %q; want %d, %q", flag, status, stderr, command.ExitUsage, want)
		}
	}
}

func TestDemoNamesTheFlagOfATraceThatIsNotThere(t *testing.T) {
	const absent = "/nowhere/x.jsonl"
	status, _, stderr := runDemo(t, "--trace="+absent)
	if want := "blockyard: --trace: open " + absent + ": "; status != command.ExitFailed || !strings.Contains(stderr, want) {
		t.Errorf("status %d, %q; want %d, %q", status, stderr, command.ExitFailed, want)
	}
}

func TestSelftestRefusesFlagsThatItDoesNotHeed(t *testing.T) {
	for args, want := range map[string]string{
		"--selftest --nodes=3":                      "--nodes",
		"--limit=5 --selftest --keep-logs --seed=2": "--requests, --seed",
		"--selftest --only=all --report=x":          "--only",
	} {
		status, _, stderr := runDemo(t, strings.Fields(args)...)
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

// The help must tell the defaults that are in force.
func TestDemoHelpTellsTheDefaults(t *testing.T) {
	_, help, _ := runDemo(t, "--help")
	help = strings.Join(strings.Fields(help), " ")
	plain, traced := demo.Defaults("", 0), demo.Defaults("x", 0)
	for flag, want := range map[string][2]string{
		"nodes":         {fmt.Sprint(plain.Nodes), fmt.Sprint(traced.Nodes)},
		"engines":       {fmt.Sprint(plain.Engines), fmt.Sprint(traced.Engines)},
		"requests":      {fmt.Sprint(plain.Requests), fmt.Sprint(traced.Requests)},
		"seed":          {fmt.Sprint(plain.Seed), fmt.Sprint(traced.Seed)},
		"speed-up":      {fmt.Sprint(plain.SpeedUp), fmt.Sprint(traced.SpeedUp)},
		"prefill-rate":  {fmt.Sprint(plain.PrefillRate), fmt.Sprint(traced.PrefillRate)},
		"block-size":    {fmt.Sprint(plain.BlockSize), fmt.Sprint(traced.BlockSize)},
		"device-blocks": {fmt.Sprint(plain.DeviceBlocks), fmt.Sprint(traced.DeviceBlocks)},
		"host-size":     {fmt.Sprint(plain.HostBytes), fmt.Sprint(traced.HostBytes)},
		"disk-size":     {fmt.Sprint(plain.DiskBytes), fmt.Sprint(traced.DiskBytes)},
		"drop-frames":   {fmt.Sprint(plain.DropFrames), fmt.Sprint(traced.DropFrames)},
	} {
		told := regexp.MustCompile(`--` + flag + `=[^(]*\(default ([^,;)]+)(?:, with --trace ([^;)]+))?`).FindStringSubmatch(help)
		if told == nil {
			t.Errorf("the help of --%s tells no default", flag)
			continue
		}
		if told[2] == "" {
			told[2] = told[1]
		}
		for i, text := range told[1:] {
			var size bytesize.Size
			if err := size.UnmarshalText([]byte(text)); err == nil && strings.HasSuffix(flag, "-size") {
				text = fmt.Sprint(uint64(size))
			}
			if text != want[i] {
				t.Errorf("the help of --%s says %q; want %s and %s", flag, told[0], want[0], want[1])
			}
		}
	}
}

func TestDemoLimitIsAnotherNameOfRequests(t *testing.T) {
	for _, flag := range []string{"--requests=7", "--limit=7", "--trace-requests=7"} {
		if o := parseDemo(t, flag); o.Requests != 7 {
			t.Errorf("%s: %d requests", flag, o.Requests)
		}
	}
}

func TestDemoDoesNotColourWhatIsNoTerminal(t *testing.T) {
	if o := parseDemo(t); o.Terminal || o.Color {
		t.Errorf("terminal %v, colour %v", o.Terminal, o.Color)
	}
}
