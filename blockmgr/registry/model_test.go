package registry

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// twin is the registry said naively: what each block with a slot says of itself.
// Everything else is counted anew from that.
type twin map[kv.StoredKey]*twinBlock

type twinBlock struct {
	parent    kv.StoredKey
	hasParent bool
	slots     [NumLevels]Ref
}

// view is an Entry with its parent as a key, to be compared.
type view struct {
	Parent   string
	Slots    [NumLevels]Ref
	Children [NumLevels]uint32
	Refs     uint32
}

func (m twin) views() map[kv.StoredKey]view {
	vs := map[kv.StoredKey]view{}
	for key, b := range m {
		v := vs[key]
		v.Slots = b.slots
		if b.hasParent {
			v.Parent = b.parent.String()
		}
		vs[key] = v
	}
	for _, b := range m {
		if !b.hasParent {
			continue
		}
		v, ok := vs[b.parent]
		if !ok {
			v.Slots = [NumLevels]Ref{NoRef, NoRef}
		}
		v.Refs++
		for lv := range NumLevels {
			if b.slots[lv] != NoRef {
				v.Children[lv]++
			}
		}
		vs[b.parent] = v
	}
	return vs
}

func viewOf(r *Registry, e *Entry) view {
	v := view{Slots: e.Slots, Children: e.Children, Refs: e.Refs}
	if e.Parent != None {
		v.Parent = r.At(e.Parent).Key.String()
	}
	return v
}

// idOf is what a call returns for the entry of key.
func idOf(r *Registry, vs map[kv.StoredKey]view, key kv.StoredKey) ID {
	if _, ok := vs[key]; !ok {
		return None
	}
	return r.Find(&key)
}

func checkTwin(t *rapid.T, r *Registry, m twin, keys []kv.StoredKey) {
	want, got := m.views(), map[kv.StoredKey]view{}
	for id, e := range r.All {
		if found := r.Find(&e.Key); found != id || r.At(id) != e {
			t.Fatalf("%v is found as entry %d, want %d", e.Key, found, id)
		}
		got[e.Key] = viewOf(r, e)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("entries (-want +got):\n%s", d)
	}
	if r.Blocks() != len(m) {
		t.Fatalf("%d blocks, want %d", r.Blocks(), len(m))
	}
	ids := make([]ID, len(keys))
	r.FindAll(keys, ids)
	for i, key := range keys {
		_, exists := want[key]
		if (ids[i] != None) != exists || ids[i] != r.Find(&key) {
			t.Fatalf("%v: FindAll says %d, Find %d, exists %t", key, ids[i], r.Find(&key), exists)
		}
	}
}

func (m twin) occupy(t *rapid.T, r *Registry, key, parent kv.StoredKey, hasParent bool, lv Level, slot Ref) {
	b := m[key]
	if b == nil {
		b = &twinBlock{parent: parent, hasParent: hasParent, slots: [NumLevels]Ref{NoRef, NoRef}}
		m[key] = b
	}
	b.slots[lv] = slot
	id, parentID := r.Occupy(key, hasParent, parent, lv, slot)
	if want := r.Find(&key); id != want {
		t.Fatalf("Occupy gives entry %d, want %d", id, want)
	}
	wantParent := None
	if b.hasParent {
		wantParent = r.Find(&b.parent)
	}
	if parentID != wantParent {
		t.Fatalf("Occupy gives parent %d, want %d", parentID, wantParent)
	}
}

func (m twin) vacate(t *rapid.T, r *Registry, key kv.StoredKey, lv Level) {
	b := *m[key]
	id := r.Find(&key)
	m[key].slots[lv] = NoRef
	if m[key].slots == [NumLevels]Ref{NoRef, NoRef} {
		delete(m, key)
	}
	got, want := r.Vacate(id, lv), None
	if b.hasParent {
		want = idOf(r, m.views(), b.parent)
	}
	if got != want {
		t.Fatalf("Vacate gives parent %d, want %d", got, want)
	}
}

func TestEntriesMatchWhatTheBlocksSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, m := New(), twin{}
		var keys []kv.StoredKey
		for i := range byte(12) {
			// Same prefix, and the same key in two groups.
			keys = append(keys, kv.BlockKey{15: i / 2}.InGroup(uint32(i%2)))
		}
		key := rapid.SampledFrom(keys)
		level := rapid.SampledFrom([]Level{Host, Disk})
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { checkTwin(t, r, m, keys) },
			"occupy": func(t *rapid.T) {
				k, lv := key.Draw(t, "key"), level.Draw(t, "level")
				if b := m[k]; b != nil && b.slots[lv] != NoRef {
					t.Skip("has a slot")
				}
				slot := Ref(rapid.Uint32Max(uint32(NoRef)-1).Draw(t, "slot"))
				m.occupy(t, r, k, key.Draw(t, "parent"), rapid.Bool().Draw(t, "hasParent"), lv, slot)
			},
			"vacate": func(t *rapid.T) {
				k, lv := key.Draw(t, "key"), level.Draw(t, "level")
				if b := m[k]; b == nil || b.slots[lv] == NoRef {
					t.Skip("has no slot")
				}
				m.vacate(t, r, k, lv)
			},
			"vacate all in a loop": func(t *rapid.T) {
				lv := level.Draw(t, "level")
				for id, e := range r.All {
					if e.Slots[lv] != NoRef {
						r.Vacate(id, lv)
					}
				}
				for _, b := range m {
					b.slots[lv] = NoRef
				}
				maps.DeleteFunc(m, func(_ kv.StoredKey, b *twinBlock) bool {
					return b.slots == [NumLevels]Ref{NoRef, NoRef}
				})
			},
		})
	})
}
