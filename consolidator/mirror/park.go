package mirror

import (
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// defaultParkBytes bounds the events that wait for parents.
	defaultParkBytes = 16 << 20
	// parkPatience is the time after which a parked run makes the stream degraded.
	parkPatience = time.Second
	// runBytes and runBlockBytes are the costs of a parked run and of each of its blocks,
	// besides hashes and tokens.
	runBytes, runBlockBytes = 320, 96
)

// parkedBlock names a parked block in one tier.
type parkedBlock struct {
	tier kv.Tier
	hash kv.EngineHash
}

// parkedRun is a stored event whose parent is not known yet.
type parkedRun struct {
	event engineevent.Event // a copy
	tier  kv.Tier
	// removed marks the blocks that a later event removed; nil: none. blocksLeft counts the
	// unmarked ones.
	removed    []bool
	blocksLeft int
	parkedAt   time.Time
	bytes      int  // estimated memory
	done       bool // the run has left the park
}

// newParkedRun returns a copy of a stored event, to keep until the event's parent is known. The
// decoder reuses the memory of *e. The field bytes estimates the copy's memory: 8 bytes for a
// hash, 4 for a token, 24 for the header of a slice.
func newParkedRun(e *engineevent.Event, t kv.Tier, now time.Time) *parkedRun {
	r := &parkedRun{event: *e, tier: t, blocksLeft: len(e.BlockHashes), parkedAt: now}
	r.event.BlockHashes = slices.Clone(e.BlockHashes)
	r.event.Tokens = slices.Clone(e.Tokens)
	r.bytes = runBytes + len(e.BlockHashes)*(8+runBlockBytes) + 4*len(e.Tokens) + len(e.Salt) + len(e.LoRAName)
	if e.Multimodal != nil {
		r.event.Multimodal = make([][]uint64, len(e.Multimodal))
		for i, objects := range e.Multimodal {
			r.event.Multimodal[i] = slices.Clone(objects)
			r.bytes += 24 + 8*len(objects)
		}
	}
	return r
}

// isRemoved reports whether an event has removed block i since the run was parked.
func (r *parkedRun) isRemoved(i int) bool { return r.removed != nil && r.removed[i] }

// park holds the stored events whose parents are unknown, bounded in bytes. Lookups in an
// empty park cost nothing; a park is usually empty.
type park struct {
	limit, bytes int
	runs         int // parked runs
	byParent     map[kv.EngineHash][]*parkedRun
	byBlock      map[parkedBlock][]*parkedRun // a run once for each unremoved block
	// fullyRemoved has the runs whose blocks were all removed, by each of these blocks. Such a run
	// stays while another run has one of its blocks as the parent.
	fullyRemoved map[kv.EngineHash][]*parkedRun
	// byAge has the runs, oldest first. Runs that are done are skipped.
	byAge []*parkedRun
}

func newPark(limit int) park {
	p := park{limit: limit}
	p.reset()
	return p
}

func (p *park) reset() {
	p.bytes, p.runs, p.byAge = 0, 0, nil
	p.byParent = make(map[kv.EngineHash][]*parkedRun)
	p.byBlock = make(map[parkedBlock][]*parkedRun)
	p.fullyRemoved = make(map[kv.EngineHash][]*parkedRun)
}

func (p *park) empty() bool { return p.runs == 0 }

// waitsForParent reports whether a run has h as its parent.
func (p *park) waitsForParent(h kv.EngineHash) bool { return p.runs > 0 && len(p.byParent[h]) > 0 }

// add parks r, a stored event whose parent is unknown. It returns the parked runs that it
// dropped to make room, for the caller to count: the oldest ones, or r itself when r is larger
// than the park.
func (p *park) add(r *parkedRun) (dropped []*parkedRun) {
	if r.bytes > p.limit {
		return []*parkedRun{r}
	}
	for p.bytes+r.bytes > p.limit {
		oldest := p.oldest()
		p.discard(oldest)
		dropped = append(dropped, oldest)
	}
	p.bytes += r.bytes
	p.runs++
	if len(p.byAge) > 64+2*p.runs { // more than half have left the park; 64: not for a few
		p.byAge = slices.DeleteFunc(p.byAge, func(r *parkedRun) bool { return r.done })
	}
	p.byAge = append(p.byAge, r)
	p.byParent[r.event.Parent] = append(p.byParent[r.event.Parent], r)
	for _, h := range r.event.BlockHashes {
		k := parkedBlock{r.tier, h}
		p.byBlock[k] = append(p.byBlock[k], r)
	}
	return dropped
}

// oldest returns the parked run (a stored event) that has waited longest; nil when there is none.
func (p *park) oldest() *parkedRun {
	for len(p.byAge) > 0 && p.byAge[0].done {
		p.byAge[0] = nil
		p.byAge = p.byAge[1:]
	}
	if len(p.byAge) == 0 {
		p.byAge = nil
		return nil
	}
	return p.byAge[0]
}

// discard removes the parked run r (a stored event whose parent is unknown) from the park. A run
// all of whose blocks were removed stays only as the parent of other runs. So discard also
// removes such a run when r was the last one that needed it, and so on upwards.
func (p *park) discard(r *parkedRun) {
	for gone := []*parkedRun{r}; len(gone) > 0; gone = gone[1:] {
		if gone[0].done {
			continue
		}
		p.unlink(gone[0])
		for _, above := range p.fullyRemoved[gone[0].event.Parent] {
			if !p.hasChildren(above) {
				gone = append(gone, above)
			}
		}
	}
}

// unlink removes the parked run r (a stored event whose parent is unknown) from the indexes and
// sums of the park. It marks r as done, because r stays in p.byAge until that is compacted.
func (p *park) unlink(r *parkedRun) {
	r.done = true
	p.runs--
	p.bytes -= r.bytes
	p.byParent[r.event.Parent] = removeRun(p.byParent[r.event.Parent], r)
	if len(p.byParent[r.event.Parent]) == 0 {
		delete(p.byParent, r.event.Parent)
	}
	for i, h := range r.event.BlockHashes {
		if r.blocksLeft == 0 { // only such a run is in fullyRemoved
			if p.fullyRemoved[h] = removeRun(p.fullyRemoved[h], r); len(p.fullyRemoved[h]) == 0 {
				delete(p.fullyRemoved, h)
			}
		}
		if r.isRemoved(i) { // remove has taken the block from byBlock
			continue
		}
		k := parkedBlock{r.tier, h}
		if p.byBlock[k] = removeRun(p.byBlock[k], r); len(p.byBlock[k]) == 0 {
			delete(p.byBlock, k)
		}
	}
}

// removeRun returns runs with one occurrence of r deleted.
func removeRun(runs []*parkedRun, r *parkedRun) []*parkedRun {
	if i := slices.Index(runs, r); i >= 0 {
		return slices.Delete(runs, i, i+1)
	}
	return runs
}

// takeChildren removes the parked runs (stored events) whose parent is h from the park, and
// returns them.
func (p *park) takeChildren(h kv.EngineHash) []*parkedRun {
	runs := slices.Clone(p.byParent[h])
	for _, r := range runs {
		p.discard(r)
	}
	return runs
}

// remove takes back one announcement of block h in tier t by a parked run (a stored event whose
// parent is unknown), because the engine has removed the block. It returns false when no parked
// run announces h there. A run whose blocks are all removed is discarded, unless another run
// has one of its blocks as the parent: that run's hashes depend on these tokens.
func (p *park) remove(h kv.EngineHash, t kv.Tier) bool {
	if p.empty() {
		return false
	}
	k := parkedBlock{t, h}
	runs := p.byBlock[k]
	if len(runs) == 0 {
		return false
	}
	r := runs[0] // any run will do: only the number of announcements counts
	if r.removed == nil {
		r.removed = make([]bool, len(r.event.BlockHashes))
	}
	for i, b := range r.event.BlockHashes {
		if b == h && !r.removed[i] {
			r.removed[i] = true
			break // a run may announce h twice
		}
	}
	if p.byBlock[k] = removeRun(runs, r); len(p.byBlock[k]) == 0 {
		delete(p.byBlock, k)
	}
	if r.blocksLeft--; r.blocksLeft > 0 {
		return true
	}
	for _, h := range r.event.BlockHashes {
		p.fullyRemoved[h] = append(p.fullyRemoved[h], r)
	}
	if !p.hasChildren(r) {
		p.discard(r)
	}
	return true
}

// keepListed keeps one parked announcement of each device block on the engine's list, and removes
// all other parked announcements. A list has device blocks only, and each block once.
func (p *park) keepListed(list map[kv.EngineHash]struct{}) {
	if p.empty() {
		return
	}
	for _, k := range slices.Collect(maps.Keys(p.byBlock)) {
		keep := 0
		if _, ok := list[k.hash]; ok && k.tier == kv.TierDevice {
			keep = 1
		}
		p.keepAtMost(k, keep)
	}
}

// keepAtMost removes announcements of k until at most keep are parked.
func (p *park) keepAtMost(k parkedBlock, keep int) {
	for len(p.byBlock[k]) > keep {
		p.remove(k.hash, k.tier)
	}
}

// hasChildren reports whether a parked run has a block of r as its parent.
func (p *park) hasChildren(r *parkedRun) bool {
	return slices.ContainsFunc(r.event.BlockHashes, func(h kv.EngineHash) bool { return len(p.byParent[h]) > 0 })
}

// clearTier discards every run in tier t.
func (p *park) clearTier(t kv.Tier) {
	for _, r := range p.byAge {
		if !r.done && r.tier == t {
			p.discard(r)
		}
	}
}

// overdueAt returns when the oldest run will have been parked for parkPatience; zero when
// the park is empty.
func (p *park) overdueAt() time.Time {
	if r := p.oldest(); r != nil {
		return r.parkedAt.Add(parkPatience)
	}
	return time.Time{}
}

// foundParent is a block that became known while runs were parked for it.
type foundParent struct {
	hash     kv.EngineHash
	seq      kv.SequenceHash
	position uint32 // of the children
	nameID   uint32
}

// parkEvent keeps a stored event until its parent is known. A full park drops its oldest events,
// which are counted.
func (c *Cache) parkEvent(e *engineevent.Event, t kv.Tier) {
	c.count.Parked.Add(uint64(len(e.BlockHashes)))
	for _, r := range c.park.add(newParkedRun(e, t, c.cfg.Now())) {
		c.count.ParkOverflow.Add(uint64(r.blocksLeft))
		c.drop(dropUnknownParent, r.blocksLeft)
	}
	if c.mayBeListed(t) { // the event may repeat what is counted already
		for _, h := range e.BlockHashes {
			c.keepOneAnnouncement(parkedBlock{t, h})
		}
	}
}

// keepOneAnnouncement removes parked announcements of k until at most one is left, with
// the one of a known block in the stream counted.
func (c *Cache) keepOneAnnouncement(k parkedBlock) {
	keep := 1
	if slot, ok := c.known.Find(uint64(k.hash)); ok && c.known.At(slot).refs.Of(k.tier) > 0 {
		keep = 0
	}
	c.park.keepAtMost(k, keep)
}

// storeParked stores the parked runs whose parents have become known.
func (c *Cache) storeParked(tx *residency.Tx) {
	for len(c.foundParents) > 0 {
		c.storeChildren(tx)
	}
}

// storeChildren stores the runs that are parked for the last element of c.foundParents, a block that
// has just become known, and removes the element. The stored blocks may be parents of other
// parked runs and add elements to c.foundParents.
func (c *Cache) storeChildren(tx *residency.Tx) {
	p := c.foundParents[len(c.foundParents)-1]
	c.foundParents = c.foundParents[:len(c.foundParents)-1]
	for _, r := range c.park.takeChildren(p.hash) {
		c.count.Spliced.Add(uint64(r.blocksLeft))
		c.storeRun(tx, &run{
			event: &r.event, tier: r.tier, nameID: p.nameID, parent: p.seq, position: p.position, hasParent: true, parked: r,
			repeats: c.mayBeListed(r.tier),
		})
	}
}

// appendEvents appends the parked runs (stored events whose parents are unknown) to events, for a
// checkpoint. An empty mirror that applies the events parks the same runs. A removed block is a
// stored event and a removed event after it.
func (p *park) appendEvents(events []engineevent.Event) []engineevent.Event {
	for _, r := range p.byAge {
		if r.done {
			continue
		}
		events = append(events, r.event)
		var removed []kv.EngineHash
		for i, h := range r.event.BlockHashes {
			if r.isRemoved(i) {
				removed = append(removed, h)
			}
		}
		if len(removed) > 0 {
			events = append(events, engineevent.Event{
				Kind: kvevent.Removed, BlockHashes: removed, Medium: r.event.Medium,
				Group: r.event.Group, SpecKind: r.event.SpecKind,
			})
		}
	}
	return events
}
