package killloop

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

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
	e.Process, err = l.startChild(fmt.Sprintf("engine-%d.%d", e.worker, e.life), &orders{
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

// rankless is for who wants any order.
func rankless(docID) uint64 { return 0 }
