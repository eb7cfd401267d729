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
	// parkPatience is how long a run may wait before the stream is degraded.
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
	// gone marks the blocks that were removed since; nil: none. left counts the others.
	gone  []bool
	left  int
	since time.Time
	bytes int
	out   bool // it waits no more
}

func newParkedRun(e *engineevent.Event, t kv.Tier, now time.Time) *parkedRun {
	r := &parkedRun{event: *e, tier: t, left: len(e.BlockHashes), since: now}
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

// isGone reports whether block i was removed.
func (r *parkedRun) isGone(i int) bool { return r.gone != nil && r.gone[i] }

// park holds the stored events whose parents are unknown, bounded in bytes. Usually it
// is empty, and its lookups cost nothing then.
type park struct {
	limit, bytes int
	runs         int
	byParent     map[kv.EngineHash][]*parkedRun
	byBlock      map[parkedBlock][]*parkedRun
	// emptied has the runs without blocks left, by each of their former blocks. They stay
	// while other runs have them as parents.
	emptied map[kv.EngineHash][]*parkedRun
	// order has the runs, oldest first. Runs that wait no more are passed over.
	order []*parkedRun
}

func newPark(limit int) park {
	p := park{limit: limit}
	p.reset()
	return p
}

func (p *park) reset() {
	p.bytes, p.runs, p.order = 0, 0, nil
	p.byParent = make(map[kv.EngineHash][]*parkedRun)
	p.byBlock = make(map[parkedBlock][]*parkedRun)
	p.emptied = make(map[kv.EngineHash][]*parkedRun)
}

func (p *park) empty() bool { return p.runs == 0 }

// waitsFor reports whether a run has h as its parent.
func (p *park) waitsFor(h kv.EngineHash) bool { return p.runs > 0 && len(p.byParent[h]) > 0 }

// add parks r. It returns the runs that made room; r itself if r is too large.
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
	if len(p.order) > 64+2*p.runs {
		p.order = slices.DeleteFunc(p.order, func(r *parkedRun) bool { return r.out })
	}
	p.order = append(p.order, r)
	p.byParent[r.event.Parent] = append(p.byParent[r.event.Parent], r)
	for _, h := range r.event.BlockHashes {
		k := parkedBlock{r.tier, h}
		p.byBlock[k] = append(p.byBlock[k], r)
	}
	return dropped
}

// oldest returns the run that has waited longest; nil when there is none.
func (p *park) oldest() *parkedRun {
	for len(p.order) > 0 && p.order[0].out {
		p.order[0] = nil
		p.order = p.order[1:]
	}
	if len(p.order) == 0 {
		p.order = nil
		return nil
	}
	return p.order[0]
}

// discard takes r out, and with it emptied runs that no other run has as a parent.
func (p *park) discard(r *parkedRun) {
	for gone := []*parkedRun{r}; len(gone) > 0; gone = gone[1:] {
		if gone[0].out {
			continue
		}
		p.takeOut(gone[0])
		for _, above := range p.emptied[gone[0].event.Parent] {
			if !p.hasChildren(above) {
				gone = append(gone, above)
			}
		}
	}
}

func (p *park) takeOut(r *parkedRun) {
	r.out = true
	p.runs--
	p.bytes -= r.bytes
	p.byParent[r.event.Parent] = without(p.byParent[r.event.Parent], r)
	if len(p.byParent[r.event.Parent]) == 0 {
		delete(p.byParent, r.event.Parent)
	}
	for i, h := range r.event.BlockHashes {
		if r.left == 0 {
			if p.emptied[h] = without(p.emptied[h], r); len(p.emptied[h]) == 0 {
				delete(p.emptied, h)
			}
		}
		if r.isGone(i) {
			continue
		}
		k := parkedBlock{r.tier, h}
		if p.byBlock[k] = without(p.byBlock[k], r); len(p.byBlock[k]) == 0 {
			delete(p.byBlock, k)
		}
	}
}

// without returns runs without one r.
func without(runs []*parkedRun, r *parkedRun) []*parkedRun {
	if i := slices.Index(runs, r); i >= 0 {
		return slices.Delete(runs, i, i+1)
	}
	return runs
}

// takeChildren takes out, and returns, the runs whose parent is h.
func (p *park) takeChildren(h kv.EngineHash) []*parkedRun {
	runs := slices.Clone(p.byParent[h])
	for _, r := range runs {
		p.discard(r)
	}
	return runs
}

// remove takes back one announcement of h in tier t. False means that none is parked. A
// run without blocks left goes, unless other runs have it as their parent: they need its
// tokens.
func (p *park) remove(h kv.EngineHash, t kv.Tier) bool {
	if p.empty() {
		return false
	}
	k := parkedBlock{t, h}
	runs := p.byBlock[k]
	if len(runs) == 0 {
		return false
	}
	r := runs[0]
	if r.gone == nil {
		r.gone = make([]bool, len(r.event.BlockHashes))
	}
	for i, b := range r.event.BlockHashes {
		if b == h && !r.gone[i] {
			r.gone[i] = true
			break
		}
	}
	if p.byBlock[k] = without(runs, r); len(p.byBlock[k]) == 0 {
		delete(p.byBlock, k)
	}
	if r.left--; r.left > 0 {
		return true
	}
	for _, h := range r.event.BlockHashes {
		p.emptied[h] = append(p.emptied[h], r)
	}
	if !p.hasChildren(r) {
		p.discard(r)
	}
	return true
}

// keepListed leaves each device block in list one announcement, and all other blocks
// none.
func (p *park) keepListed(list map[kv.EngineHash]struct{}) {
	if p.empty() {
		return
	}
	for _, k := range slices.Collect(maps.Keys(p.byBlock)) {
		keep := 0
		if _, ok := list[k.hash]; ok && k.tier == kv.TierDevice {
			keep = 1
		}
		p.reduce(k, keep)
	}
}

// reduce leaves k at most keep announcements.
func (p *park) reduce(k parkedBlock, keep int) {
	for len(p.byBlock[k]) > keep {
		p.remove(k.hash, k.tier)
	}
}

func (p *park) hasChildren(r *parkedRun) bool {
	return slices.ContainsFunc(r.event.BlockHashes, func(h kv.EngineHash) bool { return len(p.byParent[h]) > 0 })
}

// clearTier takes back every announcement in tier t.
func (p *park) clearTier(t kv.Tier) {
	for _, r := range p.order {
		if !r.out && r.tier == t {
			p.discard(r)
		}
	}
}

// overdueAt returns when the oldest run has waited too long; zero when nothing waits.
func (p *park) overdueAt() time.Time {
	if r := p.oldest(); r != nil {
		return r.since.Add(parkPatience)
	}
	return time.Time{}
}

// parent is a block that became known while runs were parked for it.
type parent struct {
	hash     kv.EngineHash
	seq      kv.SequenceHash
	position uint32 // of the children
	name     uint32
}

// parkEvent keeps a stored event until its parent is known.
func (c *Cache) parkEvent(e *engineevent.Event, t kv.Tier) {
	c.count.Parked.Add(uint64(len(e.BlockHashes)))
	for _, r := range c.park.add(newParkedRun(e, t, c.cfg.Now())) {
		c.count.ParkOverflow.Add(uint64(r.left))
		c.drop(dropUnknownParent, r.left)
	}
	if c.mayBeListed(t) {
		for _, h := range e.BlockHashes {
			c.parkOnce(parkedBlock{t, h})
		}
	}
}

// parkOnce leaves k at most one announcement, parked or in the stream.
func (c *Cache) parkOnce(k parkedBlock) {
	keep := 1
	if slot, ok := c.known.Find(uint64(k.hash)); ok && c.known.At(slot).refs.Of(k.tier) > 0 {
		keep = 0
	}
	c.park.reduce(k, keep)
}

// storeParked stores the parked runs whose parents have become known.
func (c *Cache) storeParked(tx *residency.Tx) {
	for len(c.parents) > 0 {
		c.storeChildren(tx)
	}
}

// storeChildren stores the parked runs of the last of c.parents. Their blocks may be
// parents too.
func (c *Cache) storeChildren(tx *residency.Tx) {
	p := c.parents[len(c.parents)-1]
	c.parents = c.parents[:len(c.parents)-1]
	for _, r := range c.park.takeChildren(p.hash) {
		c.count.Spliced.Add(uint64(r.left))
		c.storeRun(tx, &run{
			event: &r.event, tier: r.tier, name: p.name, parent: p.seq, position: p.position, hasParent: true, parked: r,
			repeats: c.mayBeListed(r.tier),
		})
	}
}

// appendBatch appends the engine batch that would park the same runs again.
func (p *park) appendBatch(dst []byte) []byte {
	if p.empty() {
		return dst
	}
	var b engineevent.Batch
	for _, r := range p.order {
		if r.out {
			continue
		}
		b.Events = append(b.Events, r.event)
		var gone []kv.EngineHash
		for i, h := range r.event.BlockHashes {
			if r.isGone(i) {
				gone = append(gone, h)
			}
		}
		if len(gone) > 0 {
			b.Events = append(b.Events, engineevent.Event{
				Kind: kvevent.Removed, BlockHashes: gone, Medium: r.event.Medium,
				Group: r.event.Group, SpecKind: r.event.SpecKind,
			})
		}
	}
	return engineevent.AppendBatch(dst, &b)
}
