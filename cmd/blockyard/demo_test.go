package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/demo"
)

func parseDemo(t *testing.T, args ...string) demo.Options {
	t.Helper()
	var c demoCmd
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	o, err := c.options(new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	return o
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

// A zero must not be taken for "not given".
func TestDemoZerosReachTheirCheck(t *testing.T) {
	for _, flag := range []string{"--block-size", "--device-blocks", "--requests", "--host-size", "--disk-size", "--nodes", "--speed-up"} {
		o := parseDemo(t, flag+"=0")
		o.NATSURL, o.Err = "nats://unused", new(bytes.Buffer)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag+" 0: want ") {
			t.Errorf("demo %s=0: error %v", flag, err)
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
