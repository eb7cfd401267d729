package stress

import (
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// errCut is the result of a dead agent's disk operations.
var errCut = errors.New("the agent is dead")

// machine is the disk of the node under successive agents, with faults and with losses
// of power. A write passes the faults and then the record of what is not durable yet.
type machine struct {
	seed  uint64
	rates storagetest.FaultRates
	power *storagetest.PowerLoss

	// wire is the present agent's access to the disk, nil without an agent.
	wire *wire

	mu sync.Mutex
	// wrapped counts files: each has its own faults.
	wrapped uint64
	files   []*storagetest.Faulty
	// injected are the faults that earlier agents met.
	injected faultCounts
}

// faultCounts is the number of operations that each fault hit.
type faultCounts map[storagetest.Fault]int

func newMachine(seed uint64, rates storagetest.FaultRates) *machine {
	return &machine{seed: seed, rates: rates, power: storagetest.NewPowerLoss(), injected: faultCounts{}}
}

// wire is the access of one agent to the disk. After the cut no operation of that agent
// reaches the disk, as after kill -9.
type wire struct {
	gate *storagetest.Gate
	// mu is held for reading during each operation.
	mu    sync.RWMutex
	dead  bool
	stop  chan struct{}
	ended chan struct{}
}

// connect gives a new agent access to the simulated disk. It returns the function for
// blockmgr.Config.WrapDisk, which puts faults around each file.
func (m *machine) connect() (wrap func(path string, f extent.File) extent.File) {
	w := &wire{gate: &storagetest.Gate{}, stop: make(chan struct{}), ended: make(chan struct{})}
	go w.unstall()
	m.wire = w
	return func(path string, f extent.File) extent.File {
		return &wiredFile{File: m.wrap(path, f, w.gate), wire: w}
	}
}

// unstall lets stalled disk operations go on at intervals, until stop.
func (w *wire) unstall() {
	defer close(w.ended)
	tick := time.NewTicker(stallTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.gate.Release()
		case <-w.stop:
			return
		}
	}
}

// endStalls ends the stalls of this life.
func (m *machine) endStalls() { m.wire.gate.Open() }

// cut ends the agent's access to the simulated disk after the operations under way, as a kill does,
// and counts the faults that the agent met. Without an agent it does nothing.
func (m *machine) cut() {
	w := m.wire
	if w == nil {
		return
	}
	m.wire = nil
	w.gate.Open() // stalled operations end, so that mu becomes free
	w.mu.Lock()
	w.dead = true
	w.mu.Unlock()
	close(w.stop)
	<-w.ended
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.files {
		for _, fault := range faultKinds() {
			for _, op := range []storagetest.Op{storagetest.OpRead, storagetest.OpWrite, storagetest.OpAllocate, storagetest.OpSync} {
				m.injected[fault] += f.Injected(op, fault)
			}
		}
	}
	m.files = nil
}

// faultKinds returns all faults.
func faultKinds() []storagetest.Fault {
	return []storagetest.Fault{
		storagetest.FaultEIO, storagetest.FaultENOSPC, storagetest.FaultShort, storagetest.FaultTorn, storagetest.FaultStall, storagetest.FaultFlip, storagetest.FaultLost,
	}
}

// wrap returns the agent's file f with the simulated disk around it: a record of what a loss of
// power would destroy, and the faults of the configuration, if any, drawn from the seed. gate
// ends stalls.
func (m *machine) wrap(path string, f extent.File, gate *storagetest.Gate) extent.File {
	f = m.power.Wrap(path, f)
	if len(m.rates) == 0 {
		return f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrapped++ // a file that is opened again gets other faults
	name := fnv.New64a()
	name.Write([]byte(filepath.Base(path)))
	plan, err := storagetest.RandomPlan(m.seed^name.Sum64()+m.wrapped, m.rates)
	if err != nil {
		panic("BUG: " + err.Error()) // the rates are in this package
	}
	faulty := &storagetest.Faulty{File: f, Plan: plan, Gate: gate}
	m.files = append(m.files, faulty)
	return faulty
}

// wiredFile is a file of one agent.
type wiredFile struct {
	extent.File
	wire *wire
}

var _ extent.File = (*wiredFile)(nil)

// do runs a disk operation, or returns errCut when the agent's access has ended.
func (f *wiredFile) do(op func() error) error {
	f.wire.mu.RLock()
	defer f.wire.mu.RUnlock()
	if f.wire.dead {
		return errCut
	}
	return op()
}

func (f *wiredFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do(func() error {
		n, err = f.File.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *wiredFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.do(func() error {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *wiredFile) Allocate(size int64) error {
	return f.do(func() error { return f.File.Allocate(size) })
}

func (f *wiredFile) Sync() error { return f.do(f.File.Sync) }

// emptyDir removes the files in a directory, such as host memory after a loss of power.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
