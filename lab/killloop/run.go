package killloop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// loop is one run.
type loop struct {
	Options
	rng     *rand.Rand
	dir     string // of the run, in Options.Dir
	host    string // of the host tier, in Options.HostDir
	nursery *nursery
	ledger  *ledger
	report  Report
	began   time.Time
	garbled atomic.Uint64 // lines of children that could not be read

	agent   *agentProcess
	lives   int // agents started
	engines []*engineProcess
	checker *process // of this life, nil for none
}

// agentProcess is a living agent.
type agentProcess struct {
	*process
	admin string
}

// engineProcess is an engine in one of its lives.
type engineProcess struct {
	*process
	worker uint64
	space  int
	life   uint32
	killed int64 // when, 0 while it lives
}

// Run kills and checks until it is done or ctx ends. It writes the figures to
// o.Out and returns them; the error says what was wrong, or that the run proved
// nothing. No process and no file is left, but for the logs of a run that failed,
// which the error names.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	o = o.withDefaults()
	l := &loop{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), ledger: newLedger(), began: time.Now()}
	l.report.Seed = o.Seed
	if err := l.makeDirs(); err != nil {
		return Report{}, errors.Join(err, l.removeDirs(false))
	}
	l.nursery = newNursery(l.dir)
	err := l.play(ctx)
	l.killAll()
	l.nursery.close()
	l.finish()
	if err == nil {
		err = l.report.verdict()
	}
	if ctx.Err() != nil {
		return l.report, errors.Join(context.Cause(ctx), l.removeDirs(false))
	}
	_, writeErr := fmt.Fprint(o.Out, l.report.Lines())
	if err != nil {
		err = fmt.Errorf("%w (seed %d, logs in %s)", err, o.Seed, l.dir)
	}
	return l.report, errors.Join(err, writeErr, l.removeDirs(err != nil))
}

func (l *loop) makeDirs() (err error) {
	if l.dir, err = os.MkdirTemp(l.Dir, "blockyard-kill-loop-"); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if l.host, err = os.MkdirTemp(l.HostDir, "blockyard-kill-loop-"); err != nil {
		return fmt.Errorf("--host-dir: %w", err)
	}
	return nil
}

// removeDirs removes what the run has made, but for the logs if they are kept.
func (l *loop) removeDirs(keepLogs bool) error {
	var errs []error
	for _, dir := range []string{l.host, l.diskDir(), l.dir} {
		if filepath.IsAbs(dir) && !(keepLogs && dir == l.dir) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

func (l *loop) hostDir() string { return filepath.Join(l.host, "tier") }
func (l *loop) diskDir() string { return filepath.Join(l.dir, "disk") }
func (l *loop) socket() string  { return filepath.Join(l.dir, "agent.sock") }

// play is the run itself.
func (l *loop) play(ctx context.Context) error {
	for worker, space := range []int{0, 0, 1} {
		l.engines = append(l.engines, &engineProcess{worker: uint64(worker) + 1, space: space})
	}
	if err := l.startAgent(ctx); err != nil {
		return err
	}
	for _, e := range l.engines {
		if err := l.startEngine(e); err != nil {
			return err
		}
	}
	if err := l.until(ctx, func() (bool, error) { return l.ledger.granted() > 0, nil }); err != nil {
		return fmt.Errorf("the first copy: %w", err)
	}
	for kill := 1; kill <= l.Kills; kill++ {
		if err := l.live(ctx, kill); err != nil {
			return err
		}
		if err := l.die(ctx, kill); err != nil {
			return err
		}
	}
	return l.end(ctx)
}

// live lets the agent serve for a random time, and looks for what was sealed
// meanwhile.
func (l *loop) live(ctx context.Context, kill int) error {
	sweep := kill%sweepEvery == 0
	if err := l.startChecker(sweep); err != nil {
		return err
	}
	if sweep {
		if err := l.wait(ctx, l.checker, sweepTime, "looking for all sealed blocks"); err != nil {
			return err
		}
	}
	life := minLife + time.Duration(l.rng.Int64N(int64(maxLife-minLife)))
	return l.unlessSomebodyDies(ctx, life)
}

// unlessSomebodyDies waits for d. That a child ends by itself is an error.
func (l *loop) unlessSomebodyDies(ctx context.Context, d time.Duration) error {
	if !pause(ctx, d) {
		return context.Cause(ctx)
	}
	if l.agent.exited() {
		return fmt.Errorf("%s ended by itself: %v", l.agent.name, l.agent.err)
	}
	for _, e := range l.engines {
		if e.exited() {
			return fmt.Errorf("%s ended by itself: %v", e.name, e.err)
		}
	}
	return l.checkerResult()
}

// checkerResult reports a checker that failed; one that was cut short has not.
func (l *loop) checkerResult() error {
	if l.checker != nil && l.checker.exited() && l.checker.err != nil {
		return fmt.Errorf("%s: %w", l.checker.name, l.checker.err)
	}
	return nil
}

// wait waits for the end of a child.
func (l *loop) wait(ctx context.Context, p *process, limit time.Duration, what string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s takes longer than %s", what, limit))
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// die kills the agent and whoever goes with it, and starts everybody again.
func (l *loop) die(ctx context.Context, kill int) error {
	wipe := kill%wipeEvery == 0
	var victims []*engineProcess
	engine := l.engines[l.rng.IntN(len(l.engines))]
	switch odds := l.rng.IntN(engineKillOdds); {
	case wipe:
		victims = l.engines
	case odds == 0:
		victims = append(victims, engine)
	case odds == 1:
		l.kill(engine)
		if err := l.startEngines(); err != nil {
			return err
		}
		if err := l.unlessSomebodyDies(ctx, time.Duration(l.rng.Int64N(int64(maxLead)))); err != nil {
			return err
		}
	}
	at := now()
	l.agent.signal(syscall.SIGKILL)
	l.kill(victims...)
	l.killChecker()
	<-l.agent.done
	l.report.Kills++
	if wipe {
		l.bury() // who would go on in the memory of a tier that is gone
	}
	if err := l.inspect(at, wipe); err != nil {
		return err
	}
	if l.rng.IntN(2) == 0 {
		if err := l.startEngines(); err != nil {
			return err
		}
	}
	if err := l.startAgent(ctx); err != nil {
		return err
	}
	return l.startEngines()
}

// kill kills engines. Their workers may go on for a while.
func (l *loop) kill(engines ...*engineProcess) {
	for _, e := range engines {
		e.killed = now()
		e.signal(syscall.SIGKILL)
		l.report.EngineKills++
	}
}

// bury waits until the killed engines and their workers have ended.
func (l *loop) bury() {
	for _, e := range l.engines {
		if e.killed != 0 {
			<-e.done
			l.ledger.engineEnded(e.name, e.killed)
		}
	}
}

// killChecker ends the checker with its agent: it would end by itself as soon as
// it notices, and its notes must not be taken for those of the next life.
func (l *loop) killChecker() {
	if l.checker != nil {
		l.checker.signal(syscall.SIGKILL)
		<-l.checker.done
		l.checker = nil
	}
}

// inspect reads what a dead agent has left, and takes the host tier away if it is
// to be lost.
func (l *loop) inspect(at int64, wipe bool) error {
	host, err := readTier(l.hostDir(), true)
	if err != nil {
		return err
	}
	disk, err := readTier(l.diskDir(), false)
	if err != nil {
		return err
	}
	l.report.Torn += host.Torn
	l.report.Sealed += l.ledger.agentKilled(at, host, disk, wipe)
	for name, tier := range map[string]tierFiles{"host": host, "disk": disk} {
		if limit := int(l.tierBytes() / blockBytes * fullShare / 100); tier.Used > limit {
			return fmt.Errorf("%s tier: %d slots are used, want at most %d for nothing to be evicted", name, tier.Used, limit)
		}
	}
	if !wipe {
		return nil
	}
	l.report.Wipes++
	return os.RemoveAll(l.hostDir())
}

// tierBytes is the size of each tier: more than the run stores.
func (l *loop) tierBytes() uint64 {
	return max(minTierBytes, uint64(l.Kills)*storedPerKill)
}

// killAll leaves no process behind.
func (l *loop) killAll() {
	all := []*process{l.checker}
	if l.agent != nil {
		all = append(all, l.agent.process)
	}
	for _, e := range l.engines {
		all = append(all, e.process)
	}
	for _, p := range all {
		if p != nil {
			p.signal(syscall.SIGKILL)
			<-p.done
		}
	}
}

// finish completes the report.
func (l *loop) finish() {
	l.ledger.audit()
	l.report.Wall = time.Since(l.began)
	l.report.Garbled = l.garbled.Load()
	l.report.take(l.ledger)
}
