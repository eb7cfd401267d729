package stress

import (
	"fmt"
	"sync"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// Totals are what a run has done and seen.
type Totals struct {
	// Ops are operations, Verified blocks whose bytes were compared and right.
	Ops, Verified int
	// Restarts are agents that took over what another one had left, PowerLosses
	// those of them that did so after a loss of power.
	Restarts, PowerLosses int
	// Torn are blocks that were refused because their bytes or records had been
	// torn, dropped or flipped.
	Torn int
	// Retired are pools that were closed while their agent lived.
	Retired int
	// Evicted are blocks that left a tier to make room.
	Evicted int
	// WrongBytes are blocks that were served with other bytes than they should
	// have.
	WrongBytes int
	// Flipped are verified blocks of which the negative control flipped a bit, Seen
	// those that the check then found wrong.
	Flipped, Seen int
	// Resumed are slots that sessions took over from their former selves, Checked
	// grants of which nobody else had touched a byte when their copy ended.
	Resumed, Checked int
	// Trips count how often a disk was left alone because it failed, Abandoned reads
	// that were given up because they did not end.
	Trips, Abandoned int
	// LockedOut are streams that ended early, because an agent ended while the disk
	// did not answer, and cannot give up its locks within this process.
	LockedOut int
	// Faults is how often each fault was injected, by name, bit flips in files of
	// dead agents as "spoiled" among them.
	Faults map[string]int
}

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

func (t *Totals) fault(name string, n int) {
	if n == 0 {
		return
	}
	if t.Faults == nil {
		t.Faults = map[string]int{}
	}
	t.Faults[name] += n
}

// life adds the counters of the pools of one agent.
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

// line is the last line of a run.
func (t *Totals) line() string {
	return fmt.Sprintf("stress: ops=%d verified=%d restarts=%d powerlosses=%d torn_seen=%d evicted=%d wrong_bytes=%d",
		t.Ops, t.Verified, t.Restarts, t.PowerLosses, t.Torn, t.Evicted, t.WrongBytes)
}

// board collects the totals of streams that run at the same time. It is safe for
// concurrent use.
type board struct {
	mu    sync.Mutex
	names []string
	by    map[string]*Totals
}

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

// sum is the totals of all configurations.
func (b *board) sum() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all Totals
	for _, t := range b.by {
		all.add(t)
	}
	return all
}

// copies are the totals by configuration.
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

// table shows the totals of each configuration.
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
