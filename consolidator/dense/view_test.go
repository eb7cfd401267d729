package dense

import (
	"testing"

	"pgregory.net/rapid"
)

// viewTwin is a view and a naive copy of what the table held when it was taken.
type viewTwin struct {
	view *View[testValue]
	held map[uint64]testValue
}

func (w *viewTwin) check(rt *rapid.T) {
	found := make(map[uint64]testValue)
	index := NewIndex(w.view)
	for slot := range w.view.Slots() {
		if b := *w.view.At(slot); b.refs != 0 {
			found[w.view.Key(slot)] = b
			index.Add(slot)
		}
	}
	if len(found) != len(w.held) {
		rt.Fatalf("the view has %d entries, want %d", len(found), len(w.held))
	}
	for k, want := range w.held {
		if slot, ok := index.Find(k); !ok || *w.view.At(slot) != want || found[k] != want {
			rt.Fatalf("key %x: found %t, %+v, want %+v", k, ok, found[k], want)
		}
	}
	if _, ok := index.Find(1 << 60); ok {
		rt.Fatal("a key that was never there is found")
	}
}

// TestViewKeepsWhatTheTableHeld: however the table changes, every open view has what the
// table held when the view was taken.
func TestViewKeepsWhatTheTableHeld(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table Table[testValue]
		held := make(map[uint64]testValue)
		var views []*viewTwin
		keys := rapid.Uint64Range(0, 3*ChunkSize)
		value := uint32(0)
		set := func(k uint64) {
			slot, ok := table.Find(k)
			if !ok {
				slot, _ = table.Insert(k)
			}
			value++
			table.Unshare(slot)
			*table.At(slot) = testValue{slot: slot, number: value, refs: 1}
			held[k] = *table.At(slot)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) { set(keys.Draw(rt, "key")) },
			"set a run": func(rt *rapid.T) {
				for k := range uint64(ChunkSize) {
					set(k + keys.Draw(rt, "key")%2*ChunkSize)
				}
			},
			"remove": func(rt *rapid.T) {
				k := keys.Draw(rt, "key")
				if slot, ok := table.Find(k); ok {
					table.Remove(slot)
					delete(held, k)
				}
			},
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "really") == 0 {
					table.Clear()
					clear(held)
				}
			},
			"view": func(rt *rapid.T) {
				if len(views) < 3 {
					w := &viewTwin{view: table.View(), held: make(map[uint64]testValue)}
					for k, b := range held {
						w.held[k] = b
					}
					views = append(views, w)
				}
			},
			"close": func(*rapid.T) {
				if len(views) > 0 {
					views[0].check(rt)
					views[0].view.Close()
					views = views[1:]
				}
			},
			"": func(rt *rapid.T) {
				for _, w := range views {
					w.check(rt)
				}
			},
		})
	})
}

// TestViewCopiesOnlyWhatChanges: a view copies no entry, a change copies one chunk once,
// and a table without views copies nothing.
func TestViewCopiesOnlyWhatChanges(t *testing.T) {
	var table Table[testValue]
	const chunks = 64
	for k := range uint64(chunks * ChunkSize) {
		table.Insert(k)
	}
	shared := func(v *View[testValue]) (n int) {
		for i, c := range v.chunks {
			if table.chunks[i] == c {
				n++
			}
		}
		return n
	}
	if n := testing.AllocsPerRun(10, func() { table.View().Close() }); n > 3 {
		t.Errorf("a view makes %v allocations, want its own, its chunk list and a counter", n)
	}
	edit := func(slot uint32) {
		table.Unshare(slot)
		table.At(slot).number = 1
	}
	v := table.View()
	if n := shared(v); n != chunks {
		t.Errorf("a new view shares %d chunks, want %d", n, chunks)
	}
	for range 3 {
		edit(5)
		table.Remove(7)
		table.Insert(1 << 40)
		edit(3*ChunkSize + 1)
	}
	if n := shared(v); n != chunks-2 {
		t.Errorf("after changes in two chunks the view shares %d chunks, want %d", n, chunks-2)
	}
	v.Close()
	before := table.chunks[9]
	edit(9 * ChunkSize)
	if table.chunks[9] != before || table.views != nil {
		t.Error("a table without views copied a chunk")
	}
}
