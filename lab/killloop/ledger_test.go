package killloop

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/cockroachdb/datadriven"
)

func grantNote(at int64, doc docID, slots ...proto.Slot) *note {
	return &note{Kind: noteGrant, Time: at, Doc: doc, Slots: slots}
}

func settleNote(at int64, slots ...proto.Slot) *note {
	return &note{Kind: noteSettle, Time: at, Slots: slots}
}

// TestLedgerScript runs the stories in testdata/ledger.txt. Each line of a story is what one
// engine notes: its name, the time, and "grants SLOT@GENERATION", "settles SLOT@GENERATION" or
// "ends". The answer is the number of slots that were granted while an engine wrote them.
func TestLedgerScript(t *testing.T) {
	datadriven.RunTest(t, "testdata/ledger.txt", func(t *testing.T, d *datadriven.TestData) string {
		l := newLedger()
		for line := range strings.Lines(d.Input) {
			var engine, verb string
			var at int64
			slot := proto.Slot{Extent: 1}
			_, _ = fmt.Sscanf(line, "%s %d %s %d@%d", &engine, &at, &verb, &slot.Index, &slot.Generation)
			switch verb {
			case "grants":
				l.add(engine, grantNote(at, 1, slot))
			case "settles":
				l.add(engine, settleNote(at, slot))
			case "ends":
				l.engineEnded(engine, at)
			default:
				t.Fatalf("%s: line %q", d.Pos, line)
			}
		}
		l.audit()
		return fmt.Sprintln(l.counts[faultDouble])
	})
}

// filesOf returns a tier in which some blocks of a document are sealed.
func filesOf(doc docID, blocks ...int) tierFiles {
	ns := namespaceOf(0)
	f := tierFiles{Sealed: map[kv.StoredKey]struct{}{}}
	for _, b := range blocks {
		f.Sealed[doc.keys(ns.ID())[b].InGroup(0)] = struct{}{}
	}
	return f
}

func wantedBlocks(t *testing.T, l *ledger, limit int) (blocks []uint32) {
	t.Helper()
	list, unknown := l.wanted(limit, func(d docID) uint64 { return uint64(d) })
	if unknown != 0 {
		t.Errorf("%d blocks are of no document", unknown)
	}
	for _, w := range list {
		blocks = append(blocks, w.Blocks...)
	}
	return blocks
}

func TestSealedBlockThatIsNotFoundCountsOnceAsLost(t *testing.T) {
	l, doc := newLedger(), makeDoc(1, 0, 1)
	l.add("engine", grantNote(1, doc, proto.Slot{}))
	if n := l.agentKilled(5, filesOf(doc, 0, 2), filesOf(doc, 2, 3), false); n != 3 {
		t.Errorf("%d blocks are sealed, want 3", n)
	}
	if got := wantedBlocks(t, l, 0); !slices.Equal(got, []uint32{0, 2, 3}) {
		t.Errorf("looks for %v, want blocks 0, 2 and 3", got)
	}
	l.add("checker", &note{Kind: noteFound, Doc: doc, Blocks: []uint32{0}})
	l.add("checker", &note{Kind: noteLost, Doc: doc, Blocks: []uint32{2}})
	l.add("checker", &note{Kind: noteLost, Doc: doc, Blocks: []uint32{2, 7}}) // 7 need not be there
	if n := l.counts[faultSealed]; n != 1 || l.found != 1 {
		t.Errorf("%d blocks are lost and %d found, want 1 and 1", n, l.found)
	}
	if got := wantedBlocks(t, l, 0); !slices.Equal(got, []uint32{3}) {
		t.Errorf("then looks for %v, want block 3", got)
	}
	l.agentKilled(6, tierFiles{}, tierFiles{}, false) // what was sealed once has to stay
	if got := wantedBlocks(t, l, 0); !slices.Equal(got, []uint32{0, 3}) {
		t.Errorf("after the next kill looks for %v, want blocks 0 and 3", got)
	}
}

func TestLossOfTheHostTierLeavesWhatIsOnDisk(t *testing.T) {
	l, doc := newLedger(), makeDoc(1, 0, 1)
	l.add("engine", grantNote(1, doc, proto.Slot{}))
	l.agentKilled(5, filesOf(doc, 0, 1), tierFiles{}, false)
	if n := l.agentKilled(6, filesOf(doc, 0, 1), filesOf(doc, 1), true); n != 1 {
		t.Errorf("%d blocks are sealed, want 1", n)
	}
	if got := wantedBlocks(t, l, 0); !slices.Equal(got, []uint32{1}) {
		t.Errorf("looks for %v, want block 1", got)
	}
}

func TestBlocksThatNeverCameBackAreLookedForFirst(t *testing.T) {
	l, old, fresh := newLedger(), makeDoc(1, 0, 1), makeDoc(1, 0, 2)
	l.add("engine", grantNote(1, old, proto.Slot{}))
	l.add("engine", grantNote(1, fresh, proto.Slot{Index: 1}))
	l.agentKilled(5, filesOf(old, 4), tierFiles{}, false)
	l.add("checker", &note{Kind: noteFound, Doc: old, Blocks: []uint32{4}})
	l.agentKilled(6, filesOf(fresh, 5), tierFiles{}, false)
	if got := wantedBlocks(t, l, 1); !slices.Equal(got, []uint32{5}) {
		t.Errorf("looks for %v first, want block 5", got)
	}
}

func TestBlockThatNobodyStoredIsUnknown(t *testing.T) {
	l := newLedger()
	l.agentKilled(5, filesOf(1, 0), tierFiles{}, false)
	if _, unknown := l.wanted(0, anyOrder); unknown != 1 {
		t.Errorf("%d blocks are unknown, want 1", unknown)
	}
}

func TestCopiesThatAKillMeetsAreCounted(t *testing.T) {
	l := newLedger()
	slots := make([]proto.Slot, 4)
	for i := range slots {
		slots[i].Index = uint32(i)
		l.add("one", grantNote(1, 1, slots[i]))
	}
	copied := func(i int, begin, end int64) {
		l.add("one", &note{Kind: noteBegin, Time: begin, Slots: slots[i : i+1]})
		if end > 0 {
			l.add("one", &note{Kind: noteEnd, Time: end, Slots: slots[i : i+1]})
		}
	}
	copied(0, 10, 20)
	copied(1, 10, 40)
	copied(2, 31, 40)
	copied(3, 25, 0) // killed in the middle of it
	l.engineEnded("one", 50)
	l.agentKilled(15, tierFiles{}, tierFiles{}, false)
	l.agentKilled(30, tierFiles{}, tierFiles{}, false)
	if n := l.inFlight(); n != 4 {
		t.Errorf("%d copies in flight, want 2 at the first kill and 2 at the second", n)
	}
}

func TestFaultsOfChildrenAreCounted(t *testing.T) {
	l := newLedger()
	for range 3 * maxTexts {
		l.add("engine", &note{Kind: noteFault, Fault: faultForeign, Count: 2, Text: "there"})
	}
	if n := l.counts[faultForeign]; n != 6*maxTexts || len(l.texts) != maxTexts {
		t.Errorf("counted %d and kept %d texts, want %d and %d", n, len(l.texts), 6*maxTexts, maxTexts)
	}
}
