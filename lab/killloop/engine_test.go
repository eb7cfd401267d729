package killloop

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func testCopy(size int) *slotCopy {
	return &slotCopy{mem: make([]byte, size), stamp: pattern{1, 2}, content: contentOf(kv.BlockKey{3})}
}

func TestForeignByteIsNoticedWheneverItComes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := testCopy(blockBytes)
		steps := 2 * blockBytes / pieceBytes
		at := rapid.IntRange(0, blockBytes-1).Draw(t, "byte")
		when := rapid.IntRange(0, steps).Draw(t, "step")
		flip := rapid.ByteRange(1, 255).Draw(t, "flip")
		noticed, ours := 0, false
		for i := range steps + 1 {
			if i == when {
				// Not yet ours is what no stamp was written to.
				ours = at < c.stamped
				c.mem[at] ^= flip
			}
			if i < steps {
				noticed += c.step()
			}
		}
		noticed += c.foreign()
		if (noticed > 0) != ours {
			t.Fatalf("byte %d changed at step %d: %d noticed, want some: %t", at, when, noticed, ours)
		}
	})
}

func TestCopyThatIsGivenUpKnowsItsBytes(t *testing.T) {
	for steps := range 2*blockBytes/pieceBytes + 1 {
		c := testCopy(blockBytes)
		for range steps {
			c.step()
		}
		if n := c.foreign(); n != 0 {
			t.Errorf("after %d steps %d bytes are foreign, want 0", steps, n)
		}
		if steps > 0 {
			c.mem[0] ^= 1
			if n := c.foreign(); n != 1 {
				t.Errorf("after %d steps and a changed byte %d bytes are foreign, want 1", steps, n)
			}
		}
	}
}

func TestWrongBytesAreCounted(t *testing.T) {
	p, b := contentOf(kv.BlockKey{1}), make([]byte, 64)
	p.fill(b, 128)
	if n := p.wrong(b, 128); n != 0 {
		t.Errorf("%d bytes are wrong, want 0", n)
	}
	b[3], b[63] = b[3]+1, b[63]+128
	if n := p.wrong(b, 128); n != 2 {
		t.Errorf("%d bytes are wrong, want 2", n)
	}
	if n := contentOf(kv.BlockKey{2}).wrong(b, 128); n < 50 {
		t.Errorf("%d bytes of another block are wrong, want nearly all of 64", n)
	}
}

func TestDocumentsShareNoBlocks(t *testing.T) {
	seen := map[kv.BlockKey]docID{}
	for space := range spaces {
		ns := namespaceOf(space)
		if got := ns.BlockBytes(); got != blockBytes {
			t.Fatalf("blocks of namespace %d have %d bytes, want %d", space, got, blockBytes)
		}
		for _, doc := range []docID{makeDoc(0, 0, 1), makeDoc(1, 0, 1), makeDoc(1, 1, 1), makeDoc(2, 0, 1), makeDoc(1, 0, 2)} {
			for _, key := range doc.keys(ns.ID()) {
				if other, twice := seen[key]; twice {
					t.Errorf("documents %#x and %#x share a block", uint64(doc), uint64(other))
				}
				seen[key] = doc
			}
		}
	}
}

// movedEngine returns an engine that held four slots and had two others pinned when its
// agent died.
func movedEngine(out io.Writer) (e *engine, left, next *session) {
	e = newEngine(orders{Worker: 1}, out)
	left, next = emptySession(), emptySession()
	st := &store{doc: makeDoc(1, 0, 1), mappedBy: left, heldBy: left}
	for i := range 4 {
		st.copies = append(st.copies, &slotCopy{slot: proto.Slot{Index: uint32(i)}})
	}
	left.stores[st] = struct{}{}
	left.loads[&load{
		mappedBy: left, heldBy: left, slots: []proto.Slot{{Index: 8}, {Index: 9}}, dropped: map[proto.Slot]bool{},
	}] = struct{}{}
	return e, left, next
}

func emptySession() *session {
	return &session{
		takenOver: make(chan struct{}), stores: map[*store]struct{}{}, loads: map[*load]struct{}{}, pins: map[proto.Slot]*resumedPin{},
	}
}

// faultsIn sums up the faults among notes.
func faultsIn(t *testing.T, out *bytes.Buffer) map[fault]uint64 {
	t.Helper()
	sum := map[fault]uint64{}
	for d := json.NewDecoder(out); d.More(); {
		var n note
		if err := d.Decode(&n); err != nil {
			t.Fatal(err)
		}
		if n.Kind == noteFault {
			sum[n.Fault] += n.Count
		}
	}
	return sum
}

func TestSlotsThatResumeNamedAndDidNotGetBackAreAFault(t *testing.T) {
	var allGranted, allPinned []proto.Slot
	for i := range 4 {
		allGranted = append(allGranted, proto.Slot{Index: uint32(i)})
	}
	allPinned = append(allPinned, proto.Slot{Index: 8}, proto.Slot{Index: 9})
	for _, c := range []struct {
		name            string
		offered, unsure bool
		granted, pinned []proto.Slot
		want            uint64
	}{
		{"all came back", false, false, allGranted, allPinned, 0},
		{"a grant did not", false, false, allGranted[1:], allPinned, 1},
		{"a pin did not", false, false, allGranted, allPinned[:1], 1},
		{"nothing did", false, false, nil, nil, 6},
		{"after a commit", true, false, nil, allPinned, 0},
		{"after a RESUME without an answer", false, true, nil, nil, 0},
	} {
		var out bytes.Buffer
		e, left, next := movedEngine(&out)
		for st := range left.stores {
			st.answerOpen = c.offered
		}
		left.resumeUnanswered = c.unsure
		h := e.held(left)
		if len(h.Granted) != 4 || len(h.Pinned) != 2 {
			t.Fatalf("RESUME names %+v, want 4 grants and 2 pins", h)
		}
		gone, unused := e.move(left, next, proto.Held{Granted: c.granted, Pinned: c.pinned}, 1)
		if n := faultsIn(t, &out)[faultDropped]; n != c.want {
			t.Errorf("%s: %d slots count as dropped, want %d", c.name, n, c.want)
		}
		if len(gone)+len(c.granted) != 4 || len(unused) != 0 {
			t.Errorf("%s: %d grants are gone and %d pins unused, want %d and 0", c.name, len(gone), len(unused), 4-len(c.granted))
		}
		for l := range next.loads {
			for _, slot := range l.slots {
				if got, want := e.stillPinned(t.Context(), l, slot), slices.Contains(c.pinned, slot); got != want {
					t.Errorf("%s: %+v is pinned: %t, want %t", c.name, slot, got, want)
				}
			}
		}
	}
}

func TestPinsOfLoadsThatEndedMeanwhileAreReleased(t *testing.T) {
	e, left, next := movedEngine(io.Discard)
	h := e.held(left)
	clear(left.loads)
	if _, unused := e.move(left, next, h, 1); len(unused) != 2 {
		t.Errorf("%d pins are unused, want 2", len(unused))
	}
}

func TestSharedPinIsReleasedWithItsLastLoad(t *testing.T) {
	e, left, next := movedEngine(io.Discard)
	second := &load{mappedBy: left, heldBy: left, slots: []proto.Slot{{Index: 9}}, dropped: map[proto.Slot]bool{}}
	left.loads[second] = struct{}{}
	h := e.held(left)
	slices.SortFunc(h.Pinned, func(a, b proto.Slot) int { return int(a.Index) - int(b.Index) })
	if len(h.Pinned) != 2 {
		t.Fatalf("RESUME names %+v, want each pin once", h.Pinned)
	}
	e.move(left, next, h, 1)
	if _, unused := e.dropPins(second); len(unused) != 0 {
		t.Errorf("pins %v are released while a load uses them", unused)
	}
	for l := range next.loads {
		if _, unused := e.dropPins(l); !slices.Equal(unused, []int{0, 1}) {
			t.Errorf("pins %v are released, want 0 and 1", unused)
		}
	}
}
