package stress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// hangTime bounds one operation. A longer one ends the run.
const hangTime = 60 * time.Second

// ErrHung says that an operation did not end. The report has the stacks of all
// goroutines.
var ErrHung = errors.New("an operation does not end")

// Result has the figures of a run.
type Result struct {
	// Seed is the seed of the first stream.
	Seed uint64
	// Totals are those of the run itself, by its configurations' names in Configs.
	Totals
	Configs map[string]Totals
	// Control are the totals of the negative control; see Totals.Flipped.
	Control Totals
}

// runner runs streams until its time is up or one fails.
type runner struct {
	options Options
	hostDir string
	diskDir string
	board   *board
	// control is true during the negative control.
	control bool
	// ops counts operations, unfinished streams included, for the progress.
	ops  atomic.Int64
	hung chan struct{}
}

// Run runs streams of random operations under all configurations and writes a report to
// Options.Out. The last line is for scripts. A negative control comes first: it flips
// bits of verified blocks, and the check must see each flip. The error of a failed run
// names the seed and the configuration to repeat.
func Run(ctx context.Context, o Options) (res Result, err error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	o = o.withDefaults()
	r := &runner{options: o, hung: make(chan struct{}, 1)}
	if r.hostDir, err = os.MkdirTemp(o.HostDir, "blockyard-stress-"); err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.hostDir)) }()
	if r.diskDir, err = os.MkdirTemp(o.Dir, "blockyard-stress-disk-"); err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.diskDir)) }()

	res.Seed = o.Seed
	fmt.Fprintf(o.Out, "stress: seed %d, %d configurations, %d operations in a stream\n", o.Seed, len(o.chosen()), o.Ops)
	if o.Config == "" {
		if res.Control, err = r.runControl(ctx); err != nil {
			return res, err
		}
	}
	all, err := r.streams(ctx, o.chosen(), o.Duration)
	if all != nil {
		res.Totals, res.Configs = all.sum(), all.copies()
		io.WriteString(o.Out, all.table())
		if res.LockedOut > 0 {
			fmt.Fprintf(o.Out, "%d streams ended early: their agents ended while the disk did not answer\n", res.LockedOut)
		}
	}
	if err != nil {
		return res, err
	}
	if o.Config == "" {
		fmt.Fprintf(o.Out, "stress (bits flipped): flipped=%d wrong_bytes=%d\n", res.Control.Flipped, res.Control.Seen)
	}
	fmt.Fprintln(o.Out, res.line())
	return res, o.judge(&res)
}

// runControl runs the negative control: it flips bits of verified blocks and counts seen flips.
func (r *runner) runControl(ctx context.Context) (Totals, error) {
	r.control = true
	defer func() { r.control = false }()
	all, err := r.streams(ctx, slices.DeleteFunc(variants(), func(v variant) bool { return !v.canWrong() }), 0)
	if err != nil {
		return Totals{}, fmt.Errorf("negative control: %w", err)
	}
	return all.sum(), nil
}

// streams runs stream after stream under each configuration of vs, o.Parallel at a time, until d
// is over, and at least one of each. It returns their totals, also with an error.
func (r *runner) streams(ctx context.Context, vs []variant, d time.Duration) (*board, error) {
	r.board = newBoard(vs)
	end := time.Now().Add(d)
	stop := r.progress(d)
	defer stop()
	g, running := errgroup.WithContext(ctx) // running ends at the first error
	g.SetLimit(r.options.Parallel)
	for round := 0; running.Err() == nil && (round == 0 || time.Now().Before(end)); round++ {
		for _, v := range vs {
			if round > 0 && !time.Now().Before(end) {
				break
			}
			seed := r.options.Seed + uint64(round)
			g.Go(func() error {
				// Overlapping streams of one configuration have their own directories.
				name := filepath.Join(fmt.Sprint(round), v.name)
				return r.runStream(running, v, seed, filepath.Join(r.hostDir, name), filepath.Join(r.diskDir, name))
			})
		}
	}
	if err := r.wait(g); err != nil {
		return r.board, err
	}
	return r.board, ctx.Err()
}

// wait waits for the streams. When one hangs it writes all goroutines' stacks and returns ErrHung.
func (r *runner) wait(g *errgroup.Group) error {
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }() // outlives this call when a stream hangs
	select {
	case err := <-ended:
		return err
	case <-r.hung:
		fmt.Fprintln(r.options.Out)
		_ = pprof.Lookup("goroutine").WriteTo(r.options.Out, 2) // the report is all there is to tell it to
		return ErrHung
	}
}

// runStream runs the stream of operations of a seed under the configuration v, in directories of
// its own. The error has the flags that repeat the stream. An operation that takes hangTime counts
// as hung: r.hung tells the run.
func (r *runner) runStream(ctx context.Context, v variant, seed uint64, hostDir, diskDir string) (err error) {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	watch := time.AfterFunc(hangTime, func() {
		select {
		case r.hung <- struct{}{}:
		default:
		}
	})
	defer watch.Stop()
	for _, dir := range []string{hostDir, diskDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	w, err := newWorld(v, seed, hostDir, diskDir, r.control, r.options.Log)
	if err == nil {
		err = r.drive(ctx, w, stream(seed, r.options.Ops), watch)
	}
	if closed := w.close(); err == nil && closed != nil {
		err = fmt.Errorf("end: %w", closed)
	}
	r.board.add(v.name, &w.total)
	if err == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("seed %d, configuration %s, operation %d: %w (again: --seed %d --config %s)", seed, v.name, w.opNumber, err, seed, v.name)
}

// drive applies a stream's operations to w and then checks all pools. watch is the timer that
// fires when one operation hangs. A stream whose agent is locked out of a stalled disk ends early,
// which is counted and is no error.
func (r *runner) drive(ctx context.Context, w *world, ops []operation, watch *time.Timer) error {
	for i := range ops {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		watch.Reset(hangTime)
		r.ops.Add(1)
		switch err := w.apply(&ops[i]); {
		case errors.Is(err, errLockedOut):
			w.total.LockedOut++
			return nil
		case err != nil:
			return err
		}
	}
	return w.audit()
}

// progressInterval is the time between two updates of the progress.
const progressInterval = time.Second

// progress shows the progress of the run on one line, if o.Live, until the caller calls stop.
func (r *runner) progress(d time.Duration) (stop func()) {
	if !r.options.Live {
		return func() {}
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	start, what := time.Now(), "stress"
	if r.control {
		what = "negative control"
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				sum := r.board.sum()
				fmt.Fprintf(r.options.Out, "\r\x1b[K%s: %.0f of %.0f s, %d operations, %d restarts, %d wrong bytes",
					what, time.Since(start).Seconds(), d.Seconds(), r.ops.Load(), sum.Restarts, sum.WrongBytes)
			case <-quit:
				io.WriteString(r.options.Out, "\r\x1b[K")
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// Totals are the figures of operations and checks.
type Totals struct {
	// Ops is the number of operations, Verified the number of served blocks with the
	// right bytes.
	Ops, Verified int
	// Restarts is the number of agents that took over, PowerLosses the number of those
	// after a loss of power.
	Restarts, PowerLosses int
	// Torn is the number of blocks that were refused because bytes or records were
	// torn, dropped or flipped.
	Torn int
	// Retired is the number of pools that were closed while their agent lived.
	Retired int
	// Evicted is the number of evicted blocks.
	Evicted int
	// WrongBytes is the number of blocks that were served with wrong bytes.
	WrongBytes int
	// Flipped is the number of verified blocks of which the negative control flipped a
	// bit, Seen the number of those that the check found wrong.
	Flipped, Seen int
	// Resumed is the number of slots that sessions took over from an earlier session,
	// Checked the number of grants of which no other process had touched a byte when
	// their copy ended.
	Resumed, Checked int
	// Trips is the number of times that the disk breaker opened, Abandoned the number
	// of reads that were given up.
	Trips, Abandoned int
	// LockedOut is the number of streams that ended early: their agent ended while the
	// disk hung, and its locks last as long as this process.
	LockedOut int
	// Faults is the number of injected faults by name. Flips in files of dead agents
	// are "spoiled".
	Faults map[string]int
}

// add adds the counters of o to t.
func (t *Totals) add(o *Totals) {
	t.Ops += o.Ops
	t.Retired += o.Retired
	t.Verified += o.Verified
	t.Restarts += o.Restarts
	t.PowerLosses += o.PowerLosses
	t.Torn += o.Torn
	t.Evicted += o.Evicted
	t.WrongBytes += o.WrongBytes
	t.Flipped += o.Flipped
	t.Seen += o.Seen
	t.Resumed += o.Resumed
	t.Checked += o.Checked
	t.Trips += o.Trips
	t.Abandoned += o.Abandoned
	t.LockedOut += o.LockedOut
	for name, n := range o.Faults {
		t.fault(name, n)
	}
}

// fault adds n to the number of injected faults of that name.
func (t *Totals) fault(name string, n int) {
	if n == 0 {
		return
	}
	if t.Faults == nil {
		t.Faults = map[string]int{}
	}
	t.Faults[name] += n
}

// life adds the counters of an agent's pools at the end of its life.
func (t *Totals) life(pools []*blockmgr.Pool) {
	trips := uint64(0)
	for _, p := range pools {
		st := p.Stats()
		t.Torn += int(st.CorruptReads + st.CorruptHost + st.DamagedRecords)
		t.Evicted += int(st.HostEvictions + st.DiskEvictions)
		t.Resumed += int(st.Resumed)
		t.Abandoned += int(st.ReadsAbandoned)
		trips = max(trips, st.DiskTrips) // all pools share the disk
	}
	t.Trips += int(trips)
}

// line returns the last line of a run.
func (t *Totals) line() string {
	return fmt.Sprintf("stress: ops=%d verified=%d restarts=%d powerlosses=%d torn_seen=%d evicted=%d wrong_bytes=%d",
		t.Ops, t.Verified, t.Restarts, t.PowerLosses, t.Torn, t.Evicted, t.WrongBytes)
}

// board collects the totals of concurrent streams. It is safe for concurrent use.
type board struct {
	mu    sync.Mutex
	names []string
	by    map[string]*Totals
}

// newBoard returns a board with empty totals for each configuration.
func newBoard(vs []variant) *board {
	b := &board{by: map[string]*Totals{}}
	for _, v := range vs {
		b.names = append(b.names, v.name)
		b.by[v.name] = &Totals{}
	}
	return b
}

func (b *board) add(name string, t *Totals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by[name].add(t)
}

// sum returns the totals of all configurations.
func (b *board) sum() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all Totals
	for _, t := range b.by {
		all.add(t)
	}
	return all
}

// copies returns a copy of the totals of each configuration, by its name.
func (b *board) copies() map[string]Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]Totals, len(b.by))
	for name, t := range b.by {
		var c Totals
		c.add(t)
		all[name] = c
	}
	return all
}

// table returns a table of the totals, a line for each configuration.
func (b *board) table() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := fmt.Sprintf("%-14s %9s %9s %9s %12s %9s %9s %8s\n",
		"configuration", "ops", "verified", "restarts", "powerlosses", "torn", "evicted", "resumed")
	for _, name := range b.names {
		t := b.by[name]
		text += fmt.Sprintf("%-14s %9d %9d %9d %12d %9d %9d %8d\n",
			name, t.Ops, t.Verified, t.Restarts, t.PowerLosses, t.Torn, t.Evicted, t.Resumed)
	}
	return text
}
