package index

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// order is the standard input of a part's process.
type order struct {
	Part Part          `json:"part"`
	Log  string        `json:"log"`
	Busy time.Duration `json:"busy"`
	// Decisions is the number of timed decisions in each case.
	Decisions int `json:"decisions"`
}

// ServePart measures the part of the benchmark that the order on in names, and writes its figures
// to out as JSON. It is the main function of Options.Child: each part has a process of its own.
func ServePart(ctx context.Context, in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	f, err := o.measure(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Part, err)
	}
	return json.NewEncoder(out).Encode(f)
}

// measure measures the part of the order, on the order's log if the part needs one.
func (o *order) measure(ctx context.Context) (f Figures, err error) {
	switch o.Part {
	case PartScore:
		return measureScore(ctx, o.Decisions)
	case PartSelect:
		return measureSelect(ctx, o.Decisions)
	}
	r, err := openReplay(o.Log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.log.Close()) }()
	switch o.Part {
	case PartEvents:
		return r.measureEvents()
	case PartMixed:
		return r.measureMixed()
	case PartLookups:
		return r.measureLookups()
	case PartBusy:
		return r.measureBusy(ctx, o.Busy)
	case PartVisible:
		return r.measureVisible(ctx, o.Busy)
	case PartMemory:
		return r.measureMemory()
	}
	return nil, fmt.Errorf("part %q is not known", o.Part)
}

const (
	// childPatience bounds the time that an ended process's pipes stay open.
	childPatience = 2 * time.Second
	// maxComplaint bounds the quote of a process's standard error.
	maxComplaint = 4096
)

// measure runs one part in a process of its own and returns the process's figures. log is the
// path of the log, empty for a part without one. The process is not a cluster.Process: one thread
// starts all of those, and startOn chooses the processor by the thread that starts the process.
func (o *Options) measure(ctx context.Context, part Part, log string) (Figures, error) {
	in, err := json.Marshal(order{Part: part, Log: log, Busy: o.Busy, Decisions: o.Decisions})
	if err != nil {
		return nil, err
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, o.Child[0], o.Child[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(in), &out, &errs, childPatience
	cpu := o.CPU
	if part.concurrent() {
		cpu = Unpinned
	}
	if err := startOn(cmd, cpu); err != nil {
		return nil, fmt.Errorf("%s: %w", part, err)
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		complaint := strings.TrimSpace(errs.String())
		return nil, fmt.Errorf("%s of %q: %w: %s", part, log, err, complaint[:min(len(complaint), maxComplaint)])
	}
	var f Figures
	if err := json.Unmarshal(out.Bytes(), &f); err != nil {
		return nil, fmt.Errorf("%s of %q: answer %.100q: %w", part, log, out.Bytes(), err)
	}
	return f, nil
}

// startOn starts cmd with all its threads on the processor cpu, or on any for Unpinned.
func startOn(cmd *exec.Cmd, cpu int) error {
	if cpu == Unpinned {
		return cmd.Start()
	}
	// A process inherits the processors of the thread that starts it.
	runtime.LockOSThread()
	var before, only unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read the processors of this thread: %w", err)
	}
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("stay on processor %d: %w", cpu, err)
	}
	err := cmd.Start()
	if unix.SchedSetaffinity(0, &before) == nil {
		// A thread that cannot go back ends with its goroutine instead.
		runtime.UnlockOSThread()
	}
	return err
}
