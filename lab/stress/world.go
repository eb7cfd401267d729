package stress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// waitTime bounds every wait for the manager.
	waitTime = 10 * time.Second
	// openTries bounds the starts of an agent on a failing disk.
	openTries = 100
	// maxBlockBytes is the size of the largest block of makeNamespaces.
	maxBlockBytes = 2 * 16 * 100 * 2
)

// world is one stream under one configuration: the machine with its disk, the agent,
// and the engines. One goroutine drives it.
type world struct {
	variant variant
	cfg     blockmgr.Config
	// control is true during the negative control; see proveCheck.
	control bool
	spaces  []*namespace

	machine *machine
	ledger  *ledger
	memory  memory
	// manager is the present agent, pools its open pools by namespace.
	manager *blockmgr.Manager
	pools   []*blockmgr.Pool

	clients     []*client
	maxSlots    int // of one client
	ghosts      []*ghost
	orphans     []*ghost
	lastSession blockmgr.SessionID
	// generations are the last generations of granted slots, by extent and index.
	generations map[[2]uint32]uint64
	boots       int // agents that were started
	// opNumber is the number of the operation under way, from 1.
	opNumber int
	total    Totals
	buf      []byte
}

// newWorld returns the world of one stream: a simulated disk, clients that stand for engines, and
// a ledger of what must be true. It starts the first agent. The directories must be empty. The
// caller closes the world, also after an error.
func newWorld(v variant, seed uint64, hostDir, diskDir string, control bool, log *zap.Logger) (*world, error) {
	w := &world{
		variant: v, cfg: v.config(hostDir, diskDir), control: control, spaces: makeNamespaces(v.namespaces, v.groups),
		machine: newMachine(seed, v.rates), ledger: newLedger(), memory: memory{map[uint32]mapped{}}, buf: make([]byte, maxBlockBytes),
		generations: map[[2]uint32]uint64{},
	}
	w.cfg.Log = log
	var engines int
	engines, w.maxSlots = v.engines() // so few that grants find room
	for i := range engines {
		w.clients = append(w.clients, &client{space: i % v.namespaces})
	}
	return w, w.boot()
}

// boot starts an agent (a block manager on the simulated machine), the first or the next. Its pools
// are opened later. Under a configuration with disk faults boot tries several times. Agents take turns
// with the two rules of eviction.
func (w *world) boot() (err error) {
	if w.boots++; w.boots%2 == 1 {
		w.cfg.HostRule, w.cfg.DiskRule = policy.RuleAdaptive, policy.RuleAdaptive
	} else {
		w.cfg.HostRule, w.cfg.DiskRule = policy.RuleLRU, policy.RuleLRU
	}
	w.cfg.WrapDisk = w.machine.connect()
	w.pools = make([]*blockmgr.Pool, len(w.spaces))
	for range openTries {
		w.cfg.Sink = w.ledger.begin()
		if w.cfg.Filter, err = w.variant.newFilter(); err != nil {
			return err
		}
		if w.manager, err = blockmgr.Open(w.cfg); err == nil {
			return w.forgetExited() // sessions of the last agent
		}
		w.manager = nil
		if !w.variant.faulty() {
			break
		}
		if errors.Is(err, storage.ErrForeign) {
			// A header with a flipped bit is refused until the directory is empty.
			if err := emptyDir(w.cfg.DiskDir); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("start of an agent: %w", err)
}

// forgetExited tells a new agent to forget the sessions of its predecessor whose processes have
// ended: the predecessor died before it recorded their end. All other sessions must be known to
// the agent; otherwise it would reuse their slots.
func (w *world) forgetExited() error {
	known := map[blockmgr.SessionID]bool{}
	w.holders(func(who blockmgr.SessionID, _ []grant, _ []pin) { known[who] = true })
	for _, f := range w.manager.Previous() {
		if !known[f.Session] {
			w.manager.Forget(f.Session)
		}
		delete(known, f.Session)
	}
	delete(known, 0)
	if len(known) > 0 {
		return fmt.Errorf("the agent does not know %d sessions that its predecessor had", len(known))
	}
	return nil
}

// pool returns the pool of the namespace with that number. It opens the pool if necessary, and
// then waits until its events have told which copies it found.
func (w *world) pool(space int) (*blockmgr.Pool, error) {
	if w.pools[space] != nil {
		return w.pools[space], nil
	}
	ns := w.spaces[space]
	for try := 1; ; try++ {
		p, err := w.manager.Pool(ns.desc)
		if err == nil {
			w.pools[space] = p
			for p.Stats().Unannounced > 0 {
				time.Sleep(time.Millisecond) // events tell the ledger which copies were found
			}
			return p, w.ledger.open(ns.id, p.Stats().DiskJoining)
		}
		if !w.variant.faulty() || try == openTries {
			return nil, err
		}
	}
}

// opened returns the open pools.
func (w *world) opened() []*blockmgr.Pool {
	return slices.DeleteFunc(slices.Clone(w.pools), func(p *blockmgr.Pool) bool { return p == nil })
}

// audit returns an error when the states of the slots of a tier do not add up to its capacity, or
// when a pool's dump differs from its events.
func (w *world) audit() error {
	for _, p := range w.opened() {
		st := p.Stats()
		for name, t := range map[string]blockmgr.TierStats{"host": st.Host, "disk": st.Disk} {
			if sum := t.Free + t.Granted + t.Staging + t.Receiving + t.Quarantined + t.Active + t.Inactive; sum != t.Capacity || t.Inactive < 0 {
				return fmt.Errorf("pool %s: %s slots add up to %d of %d: %+v", p.NamespaceID(), name, sum, t.Capacity, t)
			}
		}
		if !st.DiskJoining {
			w.ledger.joined(p.NamespaceID())
		}
		if err := w.ledger.compare(p); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until a pool has nothing to do.
func (w *world) settle(p *blockmgr.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	return p.Quiesce(ctx)
}

// death is the way in which an agent ends.
type death uint8

const (
	deathClose death = iota
	deathKill
	deathPower
)

// errLockedOut ends a stream whose agent ended while a disk operation exceeded the
// deadline. The agent's memory stays mapped and its arenas stay locked until this
// process ends.
var errLockedOut = errors.New("the arenas stay locked")

// restart ends the agent in the way how, lets memory, disk and engines suffer what that entails,
// and starts the next agent. It checks all pools before and after. Under a configuration with
// spoil it flips bits in memory and on disk in between.
func (w *world) restart(how death, rng *rand.Rand) error {
	if err := w.audit(); err != nil {
		return err
	}
	w.total.life(w.opened()) // counters end with the agent
	targets := w.targets()   // only a running agent knows where its blocks lie
	if err := w.kill(how, rng); err != nil {
		return err
	}
	w.total.Restarts++
	if how == deathPower || how == deathClose && w.variant.discard { // host memory is gone
		if err := w.loseHost(); err != nil {
			return err
		}
	} else {
		w.decideFates(how, rng)
	}
	if w.variant.spoil {
		if err := w.spoil(targets, how, rng); err != nil {
			return err
		}
	}
	if booted := w.boot(); booted != nil {
		// A stalled disk operation keeps the last agent's arena locked until this process ends.
		if w.variant.deadline > 0 && errors.Is(booted, storage.ErrLocked) {
			return errLockedOut
		}
		return booted
	}
	for _, space := range rng.Perm(len(w.spaces)) {
		if rng.IntN(4) == 0 {
			continue // a later operation opens it
		}
		if _, err := w.pool(space); err != nil {
			return err
		}
	}
	return w.audit()
}

// kill ends the agent in the way how: in good order, by cutting it off from the disk as kill -9
// does, or with the power, which also empties host memory and loses what was not synced. The
// ledger learns which copies of blocks the next agent may or must find.
func (w *world) kill(how death, rng *rand.Rand) error {
	m := w.manager
	w.manager = nil
	if how == deathClose {
		w.machine.endStalls()
		err := m.Close()
		w.machine.cut()
		if err != nil && !w.variant.faulty() {
			return fmt.Errorf("close: %w", err)
		}
		w.ledger.end(ending{
			flushed: err == nil && !w.variant.faulty(), hostLost: w.variant.discard,
			lossless: !w.variant.canWrong() && w.variant.namespaces == 1 && !w.variant.discard,
		})
		return nil
	}
	w.machine.cut()
	m.Abandon()
	w.ledger.end(ending{reverted: how == deathPower, hostLost: how == deathPower})
	if how == deathKill {
		return nil
	}
	w.total.PowerLosses++
	if _, err := w.machine.power.Lose(rng); err != nil {
		return err
	}
	return emptyDir(w.cfg.HostDir)
}

// loseHost ends all sessions, grants and pins, because the host memory that they use is gone.
func (w *world) loseHost() error {
	w.ghosts, w.orphans = nil, nil
	for _, c := range w.clients {
		*c = client{space: c.space}
	}
	clear(w.generations)
	return w.memory.forget()
}

// decideFates decides for each engine, after the end of an agent, whether it will resume its session
// with the next agent or dies. A dead engine's session becomes an orphan: its processes may go on
// writing into its slots until endOrphan. how is the way in which the agent ended.
func (w *world) decideFates(how death, rng *rand.Rand) {
	// Ghosts are sessions that had ended before the agent, with processes that still write.
	for _, g := range w.ghosts {
		w.orphans = append(w.orphans, &ghost{space: g.space, session: g.session, grants: g.grants})
	}
	w.ghosts = nil
	for _, c := range w.clients {
		if c.session != 0 && how == deathClose {
			*c = client{space: c.space} // the agent ended the session, as the engine knows
		}
		if c.session != 0 {
			c.earlierSession, c.session = c.session, 0
		}
		if c.earlierSession != 0 && rng.IntN(4) == 0 {
			w.orphans = append(w.orphans, &ghost{space: c.space, session: c.earlierSession, grants: c.grants, pins: c.pins})
			*c = client{space: c.space}
		}
	}
}

// close ends the stream: it closes the last agent if there is one, adds its counters and the
// injected faults to w.total, and empties the directories. An agent with a faulty disk may fail
// to close.
func (w *world) close() error {
	var errs []error
	if w.manager != nil {
		w.total.life(w.opened())
		w.machine.endStalls()
		if err := w.manager.Close(); err != nil && !w.variant.faulty() {
			errs = append(errs, err)
		}
	}
	w.machine.cut()
	for fault, n := range w.machine.injected {
		w.total.fault(fault.String(), n)
	}
	errs = append(errs, w.memory.forget(), w.machine.power.Close(), emptyDir(w.cfg.HostDir), emptyDir(w.cfg.DiskDir))
	return errors.Join(errs...)
}

// retire ends all sessions of a namespace and retires its pool, which drops all copies of blocks.
// A pool that processes of a dead engine still use refuses. The copies must not come back, except
// those in disk extents that the pool could not read. o.n chooses the namespace.
func (w *world) retire(o *operation) error {
	space := o.n % len(w.spaces)
	pool := w.pools[space]
	if pool == nil {
		return nil
	}
	for _, c := range w.clients {
		if c.space == space && c.session != 0 {
			if err := w.end(c, pool); err != nil {
				return err
			}
		}
	}
	// Stuck disk operations may keep the breaker open.
	if err := w.settle(pool); err != nil && !w.variant.faulty() {
		return err
	}
	unreadLeft := w.variant.faulty() || pool.Stats().DiskJoining // the disk may keep copies
	gone, err := pool.Retire()
	if errors.Is(err, blockmgr.ErrActive) {
		return w.audit()
	}
	if err != nil {
		return err
	}
	select {
	case <-gone:
	case <-time.After(waitTime):
		return fmt.Errorf("pool %s is not gone after %v", pool.NamespaceID(), waitTime)
	}
	w.pools[space] = nil
	w.total.Retired++
	if err := w.ledger.retired(w.spaces[space].id, unreadLeft); err != nil {
		return err
	}
	return w.audit()
}

// retired records that the pool of namespace ns has dropped all its copies of blocks, so that none
// may come back. A copy that its events did not remove is an error. With unreadLeft the disk may
// have copies that the pool did not know: those may come back.
func (l *ledger) retired(ns kv.NamespaceID, unreadLeft bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.resident {
		if at.ns == ns {
			return fmt.Errorf("block %s is still in %s after its pool was closed", at.key, at.tier)
		}
	}
	delete(l.opened, ns)
	delete(l.joining, ns)
	delete(l.mustFindAll, ns)
	maps.DeleteFunc(l.lastHost, func(at place, _ *content) bool { return at.ns == ns })
	maps.DeleteFunc(l.mayComeBack, func(at place, _ *content) bool { return at.ns == ns })
	for at, nonces := range l.diskHistory {
		if unreadLeft && at.ns == ns {
			l.mayComeBack[at] = &content{slices.Clone(nonces)}
		}
	}
	return l.broken
}
