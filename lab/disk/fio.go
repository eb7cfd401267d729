package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// fio is the flexible I/O tester with one of its I/O engines.
type fio struct {
	path, engine string
	// huge asks for buffers in huge pages: the device is told of fewer and longer
	// pieces of memory, which makes virtual ones several times as fast.
	huge bool
}

// psync is the engine that waits for each operation.
const psync = "psync"

func (f fio) name() string {
	if f.huge {
		return "fio " + f.engine + ", huge pages"
	}
	return "fio " + f.engine
}

// args is the command line for j. An engine that waits for each operation gets
// its depth from threads, each with a part of the file to itself.
func (f fio) args(j job) []string {
	rw := "read"
	if j.write {
		rw = "write"
	}
	size := j.bytes()
	args := []string{
		"--name=ceiling", "--filename=" + escapeFio(j.path), "--rw=" + rw, "--bs=" + number(j.block),
		"--direct=1", "--ioengine=" + f.engine, "--fallocate=none", "--overwrite=1", "--thread", "--group_reporting",
		"--output-format=json",
	}
	if f.huge {
		args = append(args, "--iomem_align=2m")
	}
	if f.engine == psync {
		size /= depth
		args = append(args, "--numjobs="+number(depth), "--offset_increment="+number(size))
	} else {
		args = append(args, "--iodepth="+number(depth))
	}
	return append(args, "--size="+number(size))
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// escapeFio protects colons, which separate several files.
func escapeFio(path string) string { return strings.ReplaceAll(path, ":", `\:`) }

func (f fio) run(ctx context.Context, j job) (sample, error) {
	cmd := exec.CommandContext(ctx, f.path, f.args(j)...)
	if f.huge {
		// Its malloc is the C library's, which advises huge pages when told so.
		cmd.Env = append(os.Environ(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return sample{}, fmt.Errorf("fio: %w: %s", err, firstLine(errs.String()))
	}
	return parseFio(out.Bytes(), j.write)
}

// fioReport is what we read of fio's JSON.
type fioReport struct {
	Jobs []struct {
		Error int      `json:"error"`
		Read  fioTotal `json:"read"`
		Write fioTotal `json:"write"`
	} `json:"jobs"`
}

// fioTotal is one direction of a group of jobs. The runtime is in milliseconds,
// the rate in bytes per second and finer.
type fioTotal struct {
	Bytes uint64  `json:"io_bytes"`
	Rate  float64 `json:"bw_bytes"`
	Ops   int     `json:"total_ios"`
}

// parseFio reads fio's report of one group of jobs. fio may print notes before
// it.
func parseFio(out []byte, write bool) (sample, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return sample{}, fmt.Errorf("fio's output has no JSON: %q", firstLine(string(out)))
	}
	var r fioReport
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&r); err != nil {
		return sample{}, fmt.Errorf("fio's output: %w", err)
	}
	if len(r.Jobs) != 1 {
		return sample{}, fmt.Errorf("fio's output has %d groups of jobs, want 1", len(r.Jobs))
	}
	if r.Jobs[0].Error != 0 {
		return sample{}, fmt.Errorf("fio failed with error %d", r.Jobs[0].Error)
	}
	t := r.Jobs[0].Read
	if write {
		t = r.Jobs[0].Write
	}
	if t.Bytes == 0 || t.Rate <= 0 {
		return sample{}, fmt.Errorf("fio moved %d bytes at %.0f bytes per second", t.Bytes, t.Rate)
	}
	return sample{t.Ops, t.Bytes, time.Duration(float64(t.Bytes) / t.Rate * float64(time.Second))}, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
