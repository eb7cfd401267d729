package disk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// depth is the number of operations in flight on either side, the default of a pool.
const depth = 4

// job is a file that is read or written from its start to its end.
type job struct {
	path  string
	write bool
	// block is the size of an operation, count the number of operations.
	block uint64
	count int
}

func (j job) bytes() uint64 { return j.block * uint64(j.count) }

func (j job) sample(elapsed time.Duration) sample { return sample{j.count, j.bytes(), elapsed} }

// ceiling does a job as fast as the machine can.
type ceiling interface {
	name() string
	run(ctx context.Context, j job) (sample, error)
}

// ceilings returns the programs that may show the disk's highest rate, and a name for them: fio
// with each of its fast I/O engines, with buffers in small and in huge pages, or a plain loop
// where fio is missing or unwanted.
func ceilings(noFio bool) (what string, all []ceiling) {
	if path, err := exec.LookPath("fio"); err == nil && !noFio {
		for _, engine := range []string{"libaio", "io_uring", psync} {
			all = append(all, fio{path, engine, false}, fio{path, engine, true})
		}
		return "fio", all
	}
	return "raw", []ceiling{rawLoop{}}
}

const (
	// finalists is the number of ceilings with more than one try.
	finalists = 3
	// tries is the number of runs of each finalist. Medians are compared: one lucky run
	// is no ceiling.
	tries = 3
)

// trial is a ceiling with the seconds of its runs.
type trial struct {
	ceiling ceiling
	took    []float64
}

func (t *trial) median() float64 { return summarize(t.took).Median }

// fastest returns the ceiling that does the job j in the shortest median time. Each runs once,
// and the best few some more times. Ceilings that do not work here, such as an engine that fio
// was built without, are left out.
func fastest(ctx context.Context, j job, all []ceiling) (ceiling, error) {
	var field []trial
	var errs []error
	for _, c := range all {
		t := trial{ceiling: c}
		if err := t.run(ctx, j); err != nil {
			errs = append(errs, err)
			continue
		}
		field = append(field, t)
	}
	if len(field) == 0 || ctx.Err() != nil {
		return nil, fmt.Errorf("nothing to compare with: %w", errors.Join(append(errs, ctx.Err())...))
	}
	byMedian := func(a, b trial) int { return cmp.Compare(a.median(), b.median()) }
	slices.SortStableFunc(field, byMedian)
	field = field[:min(len(field), finalists)]
	for range tries - 1 {
		for i := range field {
			if err := field[i].run(ctx, j); err != nil {
				return nil, err
			}
		}
	}
	return slices.MinFunc(field, byMedian).ceiling, nil
}

// run has the ceiling do the job j once more, and adds the time. Another number of bytes than j
// has is an error.
func (t *trial) run(ctx context.Context, j job) error {
	s, err := t.ceiling.run(ctx, j)
	if err == nil && s.bytes != j.bytes() {
		err = fmt.Errorf("moved %d bytes, want %d", s.bytes, j.bytes())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.ceiling.name(), err)
	}
	t.took = append(t.took, s.elapsed.Seconds())
	return nil
}

// rawLoop is pread and pwrite with O_DIRECT on depth threads.
type rawLoop struct {
	// spread gives every block its own memory, as a pool does. Otherwise the loop, like
	// fio, moves all blocks through a few buffers that stay in the processor's caches.
	spread bool
}

func (l rawLoop) name() string {
	if l.spread {
		return "raw, as much memory"
	}
	return "raw"
}

// run moves the job's blocks in a loop, depth at a time, with O_DIRECT. With spread each block
// has its own buffer; otherwise each goroutine uses one buffer again and again.
func (l rawLoop) run(ctx context.Context, j job) (_ sample, err error) {
	f, err := os.OpenFile(j.path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return sample{}, fmt.Errorf("raw loop: %w", err)
	}
	defer f.Close()
	buffers := uint64(depth)
	if l.spread {
		buffers = uint64(j.count)
	}
	mem, err := mapMemory(j.block * buffers)
	if err != nil {
		return sample{}, fmt.Errorf("raw loop: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(mem)) }()
	op := f.ReadAt
	if j.write {
		op = f.WriteAt
	}
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for worker := range uint64(depth) {
		g.Go(func() error {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(j.count) {
					break
				}
				at := worker
				if l.spread {
					at = uint64(i)
				}
				if _, err := op(mem[at*j.block:][:j.block], i*int64(j.block)); err != nil {
					return fmt.Errorf("raw loop: %w", err)
				}
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return sample{}, err
	}
	return j.sample(time.Since(start)), nil
}

// makeFile makes the file of the job j, allocated and written once. The manager's files are too
// before a round, so both sides find the same conditions.
func makeFile(ctx context.Context, j job) (err error) {
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(j.bytes()))
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = f.Truncate(int64(j.bytes()))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("allocate %d bytes for %s: %w", j.bytes(), j.path, err)
	}
	j.write = true
	_, err = rawLoop{}.run(ctx, j)
	return err
}

// fio is the flexible I/O tester with one of its I/O engines.
type fio struct {
	path, engine string
	// huge asks for buffers in huge pages. The device then gets fewer and longer pieces
	// of memory, which makes virtual devices several times as fast.
	huge bool
}

// psync is the I/O engine that waits for each operation.
const psync = "psync"

func (f fio) name() string {
	if f.huge {
		return "fio " + f.engine + ", huge pages"
	}
	return "fio " + f.engine
}

// args returns fio's command line for the job j. An I/O engine that waits for each operation
// (psync) gets its depth from threads, each with its own part of the file.
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

// run has fio do the job and returns what fio reports. fio is not a cluster.Process, whose output
// is JSON lines: its report is one JSON text over many lines.
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

// fioReport has the fields of fio's JSON that are read.
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

// parseFio returns the sample in fio's JSON report of one group of jobs: of its writes, or else
// of its reads. fio may print notes before the report.
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
