package killloop

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// maxTexts bounds the descriptions of faults that a ledger keeps.
const maxTexts = 20

// ledger collects the children's notes and the slot tables that dead agents left.
type ledger struct {
	ids [spaces]kv.NamespaceID

	mu      sync.Mutex
	docs    map[docKey]struct{} // documents with granted slots
	blockOf map[kv.StoredKey]place
	holds   map[proto.Slot]*hold
	copies  []span  // copies into slots, interrupted copies included
	kills   []int64 // times of the kills of agents
	// mustFind are the blocks that were sealed when an agent was killed. LOOKUP must find
	// them.
	mustFind map[kv.StoredKey]*duty
	counts   map[fault]uint64
	texts    []string
	// Blocks that engines loaded and the checker found; slots that RESUMED kept, and
	// grants that RESUMED did not keep.
	loaded, found, resumedGrants, resumedPins, notKept uint64
}

// hold is the time in which one engine owned a slot at one generation.
type hold struct {
	holder string
	span
	begun int64 // start of the copy that is under way, 0 for none
}

// span is an interval of time; end is 0 while it lasts.
type span struct{ start, end int64 }

type docKey struct {
	space int
	doc   docID
}

// place is the block that a key stands for.
type place struct {
	docKey
	block uint32
}

// duty is a block that must be there. found: the checker found it in this life of the
// agent. proven: the checker found it in some life.
type duty struct{ found, proven bool }

// newLedger returns an empty ledger, which knows the namespaces of the run.
func newLedger() *ledger {
	l := &ledger{
		holds: map[proto.Slot]*hold{}, docs: map[docKey]struct{}{}, blockOf: map[kv.StoredKey]place{},
		mustFind: map[kv.StoredKey]*duty{}, counts: map[fault]uint64{},
	}
	for i := range spaces {
		ns := namespaceOf(i)
		l.ids[i] = ns.ID()
	}
	return l
}

// fault counts a fault.
func (l *ledger) fault(f fault, count uint64, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faultLocked(f, count, format, args...)
}

func (l *ledger) faultLocked(f fault, count uint64, format string, args ...any) {
	l.counts[f] += count
	if len(l.texts) < maxTexts {
		l.texts = append(l.texts, fmt.Sprintf("%s: %s", f, fmt.Sprintf(format, args...)))
	}
}

// add enters a note into the ledger: what a child, whose name is from, reports of its slots, copies
// and finds. From the notes the ledger knows who owned which slot when, and which blocks were lost.
func (l *ledger) add(from string, n *note) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n.Kind {
	case noteGrant:
		l.learnLocked(docKey{n.Space, n.Doc})
		for _, slot := range n.Slots {
			l.grantLocked(from, slot, n.Time)
		}
	case noteSettle:
		for _, slot := range n.Slots { // the child does not use the slot after the note's time
			if h := l.holds[slot]; h != nil && h.holder == from {
				h.end = max(h.end, n.Time)
			}
		}
	case noteBegin, noteEnd:
		for _, slot := range n.Slots {
			l.copyLocked(from, slot, n)
		}
	case noteLoaded:
		l.loaded += n.Count
	case noteResumed:
		l.resumedGrants += n.Count
		l.resumedPins += n.Other
		l.notKept += uint64(len(n.Slots))
	case noteFound, noteLost:
		l.checkedLocked(n)
	case noteFault:
		l.faultLocked(n.Fault, n.Count, "%s: %s", from, n.Text)
	}
}

// learnLocked records which block of the document d each of its keys stands for, so that keys in
// slot tables can be looked up. The caller holds l.mu.
func (l *ledger) learnLocked(d docKey) {
	if _, known := l.docs[d]; known || d.space < 0 || d.space >= spaces {
		return
	}
	l.docs[d] = struct{}{}
	for i, key := range d.doc.keys(l.ids[d.space]) {
		l.blockOf[key.InGroup(0)] = place{d, uint32(i)}
	}
}

func (l *ledger) grantLocked(from string, slot proto.Slot, at int64) {
	if h := l.holds[slot]; h != nil {
		l.faultLocked(faultDouble, 1, "%+v is granted to %s and was granted to %s", slot, from, h.holder)
		return
	}
	l.holds[slot] = &hold{holder: from, span: span{start: at}}
}

// copyLocked enters the begin or the end of a copy into a slot. It ignores a process that does
// not hold the slot. The caller holds l.mu.
func (l *ledger) copyLocked(from string, slot proto.Slot, n *note) {
	h := l.holds[slot]
	switch {
	case h == nil || h.holder != from:
	case n.Kind == noteBegin:
		h.begun = n.Time
	case h.begun != 0:
		l.copies = append(l.copies, span{h.begun, n.Time})
		h.begun = 0
	}
}

// checkedLocked enters a checker's note: a line that says which blocks of a document it found, or
// which LOOKUP did not find. A block that must be found (l.mustFind) and is lost is a fault, and
// counts once. The caller holds l.mu.
func (l *ledger) checkedLocked(n *note) {
	if n.Space < 0 || n.Space >= spaces {
		return
	}
	keys := n.Doc.keys(l.ids[n.Space])
	for _, b := range n.Blocks {
		key := keys[b].InGroup(0)
		d := l.mustFind[key]
		switch {
		case d == nil: // the block was not sealed at a kill, or is lost already
		case n.Kind == noteFound:
			d.found, d.proven = true, true
			l.found++
		default:
			delete(l.mustFind, key)
			l.faultLocked(faultSealed, 1, "block %d of document %#x in namespace %d", b, uint64(n.Doc), n.Space)
		}
	}
}

// engineEnded ends every hold (the time in which an engine owns a slot) of the process name at
// the time at, when the process ended or was killed. All notes of the process must be in.
func (l *ledger) engineEnded(name string, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.holds {
		if h.holder != name {
			continue
		}
		if h.begun != 0 { // a copy was under way
			l.copies = append(l.copies, span{h.begun, at})
			h.begun = 0
		}
		h.end = cmp.Or(h.end, at)
	}
}

// granted returns the number of slots that engines were granted.
func (l *ledger) granted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds)
}

// agentKilled enters the slot tables of an agent that was killed at the time at: every sealed
// block in them must be found again. It returns their number. With wiped the host tier is lost
// too, and only blocks on disk must be found.
func (l *ledger) agentKilled(at int64, host, disk tierFiles, wiped bool) (sealed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kills = append(l.kills, at)
	if wiped { // only what is on disk can be found again
		host.Sealed = nil
		maps.DeleteFunc(l.mustFind, func(key kv.StoredKey, _ *duty) bool {
			_, stays := disk.Sealed[key]
			return !stays
		})
	}
	seen := map[kv.StoredKey]struct{}{}
	for _, tier := range []tierFiles{host, disk} {
		for key := range tier.Sealed {
			seen[key] = struct{}{}
		}
	}
	for _, d := range l.mustFind {
		d.found = false
	}
	for key := range seen {
		if l.mustFind[key] == nil {
			l.mustFind[key] = &duty{}
		}
	}
	return len(seen)
}

// wanted returns the blocks that a checker shall look up, by document: those that were sealed
// (stored) when an agent was killed, and were not found yet since its restart. Documents with
// blocks that no checker ever found come first; then the order is that of rank. limit bounds the
// documents; 0 is no limit. unknown counts the sealed blocks that no note of an engine explains.
func (l *ledger) wanted(limit int, rank func(docID) uint64) (list []wanted, unknown int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	docs := map[docKey]*wanted{}
	fresh := map[docID]bool{}
	for key, d := range l.mustFind {
		p, ok := l.blockOf[key] // namespace, document and number of the block
		if !ok {
			unknown++
			continue
		}
		if d.found {
			continue
		}
		w := docs[p.docKey]
		if w == nil {
			w = &wanted{Space: p.space, Doc: p.doc}
			docs[p.docKey] = w
		}
		w.Blocks = append(w.Blocks, p.block)
		fresh[p.doc] = fresh[p.doc] || !d.proven
	}
	for _, w := range docs {
		slices.Sort(w.Blocks)
		list = append(list, *w)
	}
	slices.SortFunc(list, func(a, b wanted) int {
		switch {
		case fresh[a.Doc] == fresh[b.Doc]:
			return cmp.Compare(rank(a.Doc), rank(b.Doc))
		case fresh[a.Doc]:
			return -1
		}
		return 1
	})
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, unknown
}

// audit records a fault for each slot that was granted to one engine while another one held it. A
// hold is the time in which an engine owns a slot at one generation; each grant has a higher
// generation. Call audit when all notes are in.
func (l *ledger) audit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	type position struct{ extent, index uint32 }
	at := map[position][]proto.Slot{}
	for slot := range l.holds {
		p := position{slot.Extent, slot.Index}
		at[p] = append(at[p], slot)
	}
	for _, slots := range at {
		slices.SortFunc(slots, func(a, b proto.Slot) int { return cmp.Compare(a.Generation, b.Generation) })
		for i, slot := range slots[1:] {
			before, h := l.holds[slots[i]], l.holds[slot]
			if before.end == 0 || before.end > h.start { // 0: it never ended
				l.faultLocked(faultDouble, 1, "%+v is granted to %s while %s writes at generation %d", slot, h.holder, before.holder, slots[i].Generation)
			}
		}
	}
}

// inFlight returns the number of copies that were under way at a kill of an agent, summed over
// all kills.
func (l *ledger) inFlight() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kill := range l.kills {
		for _, c := range l.copies {
			if c.start < kill && kill < c.end {
				n++
			}
		}
	}
	return n
}
