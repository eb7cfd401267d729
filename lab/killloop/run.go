package killloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// loop is one run.
type loop struct {
	Options
	rng *rand.Rand
	*cluster.Cluster
	dirs    *cluster.Dirs
	ledger  *ledger
	report  Report
	began   time.Time
	garbled atomic.Uint64 // unreadable lines of children

	agent   *cluster.Agent
	lives   int // agents started so far
	engines []*engineProcess
	checker *cluster.Process // of this life of the agent, or nil
}

// engineProcess is one life of an engine.
type engineProcess struct {
	*cluster.Process
	worker uint64
	space  int
	life   uint32
	killed int64 // time of its kill, 0 while it lives
}

// Run kills an agent, and engines, again and again under load, and checks that no sealed block is
// lost and no byte is wrong. It writes the figures to o.Out and returns them. The error names
// faults, or says that the run proved nothing. No process and no file is left but the logs of a
// failure, which the error names.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	o = o.withDefaults()
	l := &loop{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), ledger: newLedger(), began: time.Now()}
	l.report.Seed = o.Seed
	var err error
	if l.dirs, err = cluster.MakeDirs("blockyard-kill-loop", o.Dir, o.HostDir, 0); err != nil {
		return Report{}, err
	}
	l.Cluster = cluster.New(cluster.Options{Programs: o.Programs, Dirs: l.dirs})
	err = l.play(ctx)
	l.Close(0)
	l.finish()
	if err == nil {
		err = l.report.verdict()
	}
	if ctx.Err() != nil {
		return l.report, errors.Join(context.Cause(ctx), l.dirs.Remove(false))
	}
	_, writeErr := fmt.Fprint(o.Out, l.report.Lines())
	if err != nil {
		err = fmt.Errorf("%w (seed %d, logs in %s)", err, o.Seed, l.dirs.Logs)
	}
	return l.report, errors.Join(err, writeErr, l.dirs.Remove(err != nil))
}

// agentNode is the name of the agent's node.
const agentNode = "agent"

func (l *loop) hostDir() string { return filepath.Join(l.dirs.Host, agentNode) }
func (l *loop) diskDir() string { return filepath.Join(l.dirs.Work, agentNode+"-disk") }
func (l *loop) socket() string  { return filepath.Join(l.dirs.Work, agentNode+".sock") }

// play makes the run: it starts an agent and engines, kills the agent o.Kills times, sometimes
// with engines, and ends everything in good order.
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

// live lets the agent serve for a random time before it is killed, while a checker looks up
// sealed blocks. Every sweepEvery kills it first waits until the checker has looked up all of
// them.
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

// unlessSomebodyDies waits for the time d. An agent, engine or checker that has ended by itself
// by then is an error.
func (l *loop) unlessSomebodyDies(ctx context.Context, d time.Duration) error {
	if cluster.Wait(ctx, d) != nil {
		return context.Cause(ctx)
	}
	if l.agent.Exited() {
		return fmt.Errorf("%s ended by itself: %w", agentNode, result(l.agent.Process))
	}
	for _, e := range l.engines {
		if e.Exited() {
			return fmt.Errorf("%s ended by itself: %w", e.Name, result(e.Process))
		}
	}
	return l.checkerResult()
}

// checkerResult returns the error of a checker that ended. A checker that was killed
// has none.
func (l *loop) checkerResult() error {
	if l.checker == nil || !l.checker.Exited() {
		return nil
	}
	if err := result(l.checker); err != nil {
		return fmt.Errorf("%s: %w", l.checker.Name, err)
	}
	return nil
}

// result returns how an exited process ended.
func result(p *cluster.Process) error {
	_, err := p.Result()
	return err
}

// wait waits until the child p has ended, for limit at most. what says in the error what takes
// too long.
func (l *loop) wait(ctx context.Context, p *cluster.Process, limit time.Duration, what string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s takes longer than %s", what, limit))
	defer cancel()
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// die kills the agent, perhaps with engines, enters its slot tables into the ledger, and starts
// everything again. kill is the number of the kill; every wipeEvery-th also loses the host tier,
// and then kills all engines. Chance decides whether an engine dies with the agent or a while
// before it, and whether the killed engines start before or after the next agent.
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
	at := cluster.Now()
	l.agent.Signal(syscall.SIGKILL)
	l.kill(victims...)
	l.killChecker()
	<-l.agent.Done()
	l.report.Kills++
	if wipe {
		l.awaitKilled() // an engine must not go on in the memory of a tier that is gone
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

// kill kills engines. Their movers may go on for a while.
func (l *loop) kill(engines ...*engineProcess) {
	for _, e := range engines {
		e.killed = cluster.Now()
		e.Signal(syscall.SIGKILL)
		l.report.EngineKills++
	}
}

// awaitKilled waits until killed engines and their movers have ended, and enters their ends into
// the ledger.
func (l *loop) awaitKilled() {
	for _, e := range l.engines {
		if e.killed != 0 {
			<-e.Done()
			l.ledger.engineEnded(e.Name, e.killed)
		}
	}
}

// killChecker ends the checker with its agent, so that its notes do not count for the
// next life.
func (l *loop) killChecker() {
	if l.checker != nil {
		l.checker.Kill()
		l.checker = nil
	}
}

// inspect enters the slot tables of an agent that was killed at the time at into the ledger: their
// sealed blocks must be found again. With wipe it removes the host tier. It is an error when a
// tier is so full that blocks may have been evicted, because the ledger cannot know which.
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

// tierBytes returns the size of each tier, more than a run stores.
func (l *loop) tierBytes() uint64 {
	return max(minTierBytes, uint64(l.Kills)*storedPerKill)
}

// finish completes the report.
func (l *loop) finish() {
	l.ledger.audit()
	l.report.Wall = time.Since(l.began)
	l.report.Garbled = l.garbled.Load()
	l.report.take(l.ledger)
}

// startAgent starts an agent and waits until it is ready.
func (l *loop) startAgent(ctx context.Context) error {
	l.lives++
	a, err := l.StartAgent(ctx, cluster.AgentOptions{
		Node: agentNode, HostBytes: l.tierBytes(), DiskBytes: l.tierBytes(), ExtentBytes: extentBytes,
	})
	if err != nil {
		return fmt.Errorf("agent number %d: %w", l.lives, err)
	}
	l.agent = a
	l.report.Ready = append(l.report.Ready, time.Duration(cluster.Now()-a.Started))
	return nil
}

// startEngines waits until killed engines and their movers have ended, and starts those engines
// again.
func (l *loop) startEngines() error {
	l.awaitKilled()
	for _, e := range l.engines {
		if e.killed != 0 {
			if err := l.startEngine(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// startEngine starts the process of an engine; after a kill it is the engine's next life.
func (l *loop) startEngine(e *engineProcess) (err error) {
	if e.killed != 0 {
		e.life, e.killed = e.life+1, 0
	}
	e.Process, err = l.startChild(fmt.Sprintf("engine-%d.%d", e.worker, e.life), &orders{
		Role: roleEngine, Socket: l.socket(), Worker: e.worker, Space: e.space, Life: e.life, Seed: l.Seed,
	})
	return err
}

// checkerWorker is the checker's worker id, above those of engines.
const checkerWorker = 1000

// startChecker starts a checker for all sealed blocks, or else for those of a few documents,
// blocks that were never found first.
func (l *loop) startChecker(all bool) (err error) {
	limit := checkedDocs
	if all {
		limit = 0
	}
	salt := l.rng.Uint64()
	list, _ := l.ledger.wanted(limit, func(d docID) uint64 { return mix(salt ^ uint64(d)) })
	l.checker, err = l.startChild(fmt.Sprintf("checker-%d", l.lives), &orders{
		Role: roleChecker, Socket: l.socket(), Worker: checkerWorker, Wanted: list,
	})
	return err
}

// startChild starts the process of an engine or a checker with its orders. Each line that it
// prints is a note, an entry for the ledger. An error may come with a process that runs.
func (l *loop) startChild(name string, o *orders) (*cluster.Process, error) {
	p, err := l.Start(cluster.Spec{Name: name, Command: l.Child, Line: func(line []byte) {
		var n note
		if json.Unmarshal(line, &n) != nil {
			l.garbled.Add(1)
			return
		}
		l.ledger.add(name, &n)
	}})
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(p.Stdin).Encode(o); err != nil {
		return p, fmt.Errorf("%s: orders: %w", name, err)
	}
	return p, nil
}

// anyOrder ranks all documents alike.
func anyOrder(docID) uint64 { return 0 }
