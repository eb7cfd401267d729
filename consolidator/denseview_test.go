package consolidator

import (
	"testing"

	"pgregory.net/rapid"
)

// viewTwin is a view and a naive copy of what the table held when it was taken.
type viewTwin struct {
	view *denseView[engineBlock]
	held map[uint64]engineBlock
}

func (w *viewTwin) check(rt *rapid.T) {
	found := make(map[uint64]engineBlock)
	index := newViewIndex(w.view)
	for slot := range w.view.used {
		if b := *w.view.at(slot); b.refs != 0 {
			found[w.view.key(slot)] = b
			index.add(slot)
		}
	}
	if len(found) != len(w.held) {
		rt.Fatalf("the view has %d entries, want %d", len(found), len(w.held))
	}
	for k, want := range w.held {
		if slot, ok := index.find(k); !ok || *w.view.at(slot) != want || found[k] != want {
			rt.Fatalf("key %x: found %t, %+v, want %+v", k, ok, found[k], want)
		}
	}
	if _, ok := index.find(1 << 60); ok {
		rt.Fatal("a key that was never there is found")
	}
}

// TestViewKeepsWhatTheTableHeld: however the table changes, every open view has what the
// table held when the view was taken.
func TestViewKeepsWhatTheTableHeld(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table dense[engineBlock]
		held := make(map[uint64]engineBlock)
		var views []*viewTwin
		keys := rapid.Uint64Range(0, 3*denseChunk)
		value := uint32(0)
		set := func(k uint64) {
			slot, ok := table.find(k)
			if !ok {
				slot, _ = table.insert(k)
			}
			value++
			table.own(slot)
			*table.at(slot) = engineBlock{slot: slot, identity: value, refs: 1}
			held[k] = *table.at(slot)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) { set(keys.Draw(rt, "key")) },
			"set a run": func(rt *rapid.T) {
				for k := range uint64(denseChunk) {
					set(k + keys.Draw(rt, "key")%2*denseChunk)
				}
			},
			"remove": func(rt *rapid.T) {
				k := keys.Draw(rt, "key")
				if slot, ok := table.find(k); ok {
					table.remove(slot)
					delete(held, k)
				}
			},
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "really") == 0 {
					table.clear()
					clear(held)
				}
			},
			"view": func(rt *rapid.T) {
				if len(views) < 3 {
					w := &viewTwin{view: table.view(), held: make(map[uint64]engineBlock)}
					for k, b := range held {
						w.held[k] = b
					}
					views = append(views, w)
				}
			},
			"close": func(*rapid.T) {
				if len(views) > 0 {
					views[0].check(rt)
					views[0].view.close()
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
	var table dense[resident]
	const chunks = 64
	for k := range uint64(chunks * denseChunk) {
		table.insert(k)
	}
	shared := func(v *denseView[resident]) (n int) {
		for i, c := range v.chunks {
			if table.chunks[i] == c {
				n++
			}
		}
		return n
	}
	if n := testing.AllocsPerRun(10, func() { table.view().close() }); n > 3 {
		t.Errorf("a view makes %v allocations, want its own, its chunk list and a counter", n)
	}
	edit := func(slot uint32) {
		table.own(slot)
		table.at(slot).local = 1
	}
	v := table.view()
	if n := shared(v); n != chunks {
		t.Errorf("a new view shares %d chunks, want %d", n, chunks)
	}
	for range 3 {
		edit(5)
		table.remove(7)
		table.insert(1 << 40)
		edit(3*denseChunk + 1)
	}
	if n := shared(v); n != chunks-2 {
		t.Errorf("after changes in two chunks the view shares %d chunks, want %d", n, chunks-2)
	}
	v.close()
	before := table.chunks[9]
	edit(9 * denseChunk)
	if table.chunks[9] != before || table.views != nil {
		t.Error("a table without views copied a chunk")
	}
}
