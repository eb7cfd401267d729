package engine

import (
	"errors"
	"os"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestResumeWithTooManyProcessesTakesNone(t *testing.T) {
	a := startServer(t, nil)
	a.Scheduler(t, 1)
	s := a.session(1)
	table := a.processes
	for n := range storage.MaxSessionProcesses - 2 {
		agenttest.NoError(t, s.admit(table.Unwatched(blockmgr.Process{PID: 1 << 20, Start: uint64(n + 1)})))
	}
	alive := []blockmgr.Process{table.Identify(int32(os.Getppid())), table.Identify(1)}
	if !process.Identified(alive[0]) || alive[0] == alive[1] {
		t.Skip("two other processes are needed")
	}
	before := len(s.procs)
	var refused *refusal.Error
	if err := s.inherit(&blockmgr.PreviousSession{Processes: alive}); !errors.As(err, &refused) || refused.Code != proto.CodeLimit {
		t.Errorf("got error %v, want %s", err, proto.CodeLimit)
	}
	if n := watches(); len(s.procs) != before || len(s.enlisted) != storage.MaxSessionProcesses-1 || n != 1 {
		t.Errorf("%d processes after %d, %d enlisted, %d watched", len(s.procs), before, len(s.enlisted), n)
	}
	if err := s.inherit(&blockmgr.PreviousSession{Processes: alive[:1]}); err != nil {
		t.Errorf("one more, which there is room for: %v", err)
	}
}

func TestPreviousSessionWhoseProcessesNobodyCanTellIsNotGone(t *testing.T) {
	table := process.NewTable()
	f := newPreviousSessions(nil, table, 1, nil, zap.NewNop())
	self := table.Identify(int32(os.Getpid()))
	for name, s := range map[string]blockmgr.PreviousSession{
		"of another pid namespace":  {Foreign: true},
		"with one that had no pid":  {Processes: []blockmgr.Process{self, table.Identify(0)}},
		"without its starting time": {Processes: []blockmgr.Process{{PID: self.PID}}},
	} {
		if procs, ok := f.find(s); ok || procs != nil {
			t.Errorf("%s: found %d processes", name, len(procs))
		}
	}
	if n := watches(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func TestWorkerFromOneProcessTooManyIsRefused(t *testing.T) {
	a := startServer(t, nil)
	a.Scheduler(t, 1)
	s := a.session(1)
	for n := range storage.MaxSessionProcesses - 1 {
		agenttest.NoError(t, s.admit(a.processes.Unwatched(blockmgr.Process{PID: 1 << 20, Start: uint64(n + 1)})))
	}
	err := s.admit(a.processes.Unwatched(blockmgr.Process{PID: 1 << 20, Start: 1 << 20}))
	if r := refusalOf(err); err == nil || r.Code != proto.CodeLimit {
		t.Errorf("got error %v, want %s", err, proto.CodeLimit)
	}
}
