package agent

import (
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// formerSessions are the sessions that an earlier agent of this node had when it
// died. What they hold stays out of use until all their processes have exited, or
// their engine comes back and says with RESUME what it still uses.
type formerSessions struct {
	manager   *blockmgr.Manager
	processes *processTable
	nonce     uint64 // this agent's: a session of its own life is not a former one
	log       *zap.Logger
	stopping  <-chan struct{}
	wg        sync.WaitGroup // waits for processes to end

	resumed, grants, pins atomic.Uint64

	mu sync.Mutex
	// stuck are the sessions whose processes nobody can watch. One that holds
	// nothing ends when its pool is opened, any other with the host tier.
	stuck map[blockmgr.SessionID]struct{}
}

func newFormerSessions(m *blockmgr.Manager, t *processTable, nonce uint64, stopping <-chan struct{}, log *zap.Logger) *formerSessions {
	return &formerSessions{
		manager: m, processes: t, nonce: nonce, stopping: stopping, log: log,
		stuck: make(map[blockmgr.SessionID]struct{}),
	}
}

// watch waits, in the background, for the processes of every former session.
func (f *formerSessions) watch() {
	for _, former := range f.manager.Former() {
		procs, ok := f.find(former)
		if !ok {
			f.mu.Lock()
			f.stuck[former.Session] = struct{}{}
			f.mu.Unlock()
			continue
		}
		f.wg.Go(func() {
			defer releaseAll(procs)
			if !allExited(procs, f.stopping) {
				return
			}
			if _, waiting := f.lookup(former.Session); waiting { // it has not resumed
				f.manager.Forget(former.Session)
				f.log.Info("all processes of a former session are gone", zap.Uint64("session", uint64(former.Session)))
			}
		})
	}
}

// find watches those processes of a former session that live. It is false when
// that of one cannot be told; the others are not watched then.
func (f *formerSessions) find(former blockmgr.Former) (procs []*process, ok bool) {
	log := f.log.With(zap.Uint64("session", uint64(former.Session)))
	if former.Foreign {
		log.Warn("a former session's processes are in another pid namespace: what it holds stays out of use until the host tier is discarded or the machine restarts")
		return nil, false
	}
	for _, id := range former.Processes {
		p, gone, err := f.processes.find(id)
		if err != nil {
			log.Warn("a former session's process cannot be watched: what it holds stays out of use until the host tier is discarded or the machine restarts", zap.Error(err))
			releaseAll(procs)
			return nil, false
		}
		if !gone {
			procs = append(procs, p)
		}
	}
	return procs, true
}

// settle ends the former sessions that hold nothing in a pool that has been
// opened: there is nothing to wait for.
func (f *formerSessions) settle(p *blockmgr.Pool) {
	for _, s := range f.manager.ForgetIdle(p) {
		f.log.Info("a former session holds nothing", zap.Uint64("session", uint64(s)))
	}
}

// lookup finds a former session that has not been forgotten.
func (f *formerSessions) lookup(id blockmgr.SessionID) (blockmgr.Former, bool) {
	for _, former := range f.manager.Former() {
		if former.Session == id {
			return former, true
		}
	}
	return blockmgr.Former{}, false
}

// stats counts the former sessions that are still waited for, and those of them
// that nobody can watch.
func (f *formerSessions) stats() (waiting, stuck int) {
	left := f.manager.Former()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, former := range left {
		if _, ok := f.stuck[former.Session]; ok {
			stuck++
		}
	}
	return len(left), stuck
}

// allExited waits until all of procs have exited; false when stopping is closed
// first.
func allExited(procs []*process, stopping <-chan struct{}) bool {
	for _, p := range procs {
		select {
		case <-p.exited:
		case <-stopping:
			return false
		}
	}
	return true
}
