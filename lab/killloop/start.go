package killloop

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// startAgent starts an agent and waits until it is ready.
func (l *loop) startAgent(ctx context.Context) error {
	l.lives++
	first := make(chan []byte, 1)
	p, err := l.nursery.start("agent", append(append([]string{}, l.Agent...),
		"--node=kill-loop", "--socket="+l.socket(), "--admin=127.0.0.1:0", "--control=127.0.0.1:0",
		"--host-dir="+l.hostDir(), fmt.Sprintf("--host-size=%d", l.tierBytes()),
		"--disk-dir="+l.diskDir(), fmt.Sprintf("--disk-size=%d", l.tierBytes()),
		fmt.Sprintf("--extent-size=%d", extentBytes), "--disk-filter=none",
	), func(line []byte) {
		select {
		case first <- line:
		default: // it has nothing more to say
		}
	})
	if err != nil {
		return err
	}
	l.agent = &agentProcess{process: p}
	timeout := time.NewTimer(readyTime)
	defer timeout.Stop()
	select {
	case line := <-first:
		l.report.Ready = append(l.report.Ready, time.Duration(now()-p.started))
		return l.agent.accept(line)
	case <-p.done:
		return fmt.Errorf("agent number %d ended before it was ready: %v", l.lives, p.err)
	case <-timeout.C:
		return fmt.Errorf("agent number %d: not ready after %s", l.lives, readyTime)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// accept reads an agent's ready line.
func (a *agentProcess) accept(line []byte) error {
	var ready struct {
		Ready bool
		Admin string
	}
	if err := json.Unmarshal(line, &ready); err != nil || !ready.Ready {
		return fmt.Errorf("the agent's first line is not a ready line: %.200q", line)
	}
	a.admin = ready.Admin
	return nil
}

// startEngines starts the engines that were killed, when their workers have ended.
func (l *loop) startEngines() error {
	l.bury()
	for _, e := range l.engines {
		if e.killed != 0 {
			if err := l.startEngine(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// startEngine begins the next life of an engine.
func (l *loop) startEngine(e *engineProcess) (err error) {
	if e.killed != 0 {
		e.life, e.killed = e.life+1, 0
	}
	e.process, err = l.startChild(fmt.Sprintf("engine-%d.%d", e.worker, e.life), &orders{
		Role: roleEngine, Socket: l.socket(), Worker: e.worker, Space: e.space, Life: e.life, Seed: l.Seed,
	})
	return err
}

// checkerWorker is the worker id of the checker, above those of engines.
const checkerWorker = 1000

// startChecker starts the search for sealed blocks: all of them, or some of which
// nobody knows yet whether they came back.
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

// startChild starts an engine or checker, whose notes go into the ledger.
func (l *loop) startChild(name string, o *orders) (*process, error) {
	p, err := l.nursery.start(name, l.Child, func(line []byte) {
		var n note
		if json.Unmarshal(line, &n) != nil {
			l.garbled.Add(1)
			return
		}
		l.ledger.add(name, &n)
	})
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(p.stdin).Encode(o); err != nil {
		return p, fmt.Errorf("%s: orders: %w", name, err)
	}
	return p, nil
}

// rankless is for who wants any order.
func rankless(docID) uint64 { return 0 }
