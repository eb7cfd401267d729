package disk

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReportOfFioIsRead(t *testing.T) {
	report, err := os.ReadFile("testdata/fio-3.33.json")
	if err != nil {
		t.Fatal(err)
	}
	noted := append([]byte("note: both iodepth >= 1 and synchronous I/O engine are selected\n"), report...)
	for _, out := range [][]byte{report, noted} {
		s, err := parseFio(out, true)
		if err != nil {
			t.Fatal(err)
		}
		if s.ops != 256 || s.bytes != 256<<20 || s.elapsed.Round(time.Millisecond) != 98*time.Millisecond {
			t.Errorf("sample %+v, want 256 operations of 1 MiB in 98 ms", s)
		}
	}
}

func TestUselessReportsOfFioAreRefused(t *testing.T) {
	for name, out := range map[string]string{
		"nothing":       "",
		"no JSON":       "fio: command not understood",
		"cut short":     `{"jobs": [{"error": 0`,
		"no job":        `{"jobs": []}`,
		"two jobs":      `{"jobs": [{}, {}]}`,
		"failed":        `{"jobs": [{"error": 22, "read": {"io_bytes": 1, "bw_bytes": 1}}]}`,
		"nothing moved": `{"jobs": [{"error": 0, "write": {"io_bytes": 1, "bw_bytes": 1}}]}`,
		"negative size": `{"jobs": [{"error": 0, "read": {"io_bytes": -1, "bw_bytes": 1}}]}`,
	} {
		if s, err := parseFio([]byte(out), false); err == nil {
			t.Errorf("%s: sample %+v", name, s)
		}
	}
}

func TestFioDoesTheSameJobWithEveryEngine(t *testing.T) {
	j := job{path: "/d/a:b", write: true, block: 1 << 20, count: 8}
	waits := fio{"fio", psync, false}.args(j)
	queues := fio{"fio", "libaio", true}.args(j)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{waits, []string{"--ioengine=psync", "--numjobs=4", "--size=2097152", "--offset_increment=2097152"}},
		{queues, []string{"--ioengine=libaio", "--iodepth=4", "--size=8388608", "--iomem_align=2m"}},
	} {
		for _, want := range append(c.want, `--filename=/d/a\:b`, "--rw=write", "--bs=1048576", "--direct=1") {
			if !slices.Contains(c.args, want) {
				t.Errorf("%s is missing in %s", want, strings.Join(c.args, " "))
			}
		}
	}
	if slices.Contains(queues, "--numjobs=4") || slices.Contains(waits, "--iodepth=4") {
		t.Error("depth is asked for twice")
	}
}
