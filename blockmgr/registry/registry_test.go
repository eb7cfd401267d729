package registry

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// chain occupies blocks from to to of one sequence in host memory.
func chain(r *Registry, from, to int) {
	for i := from; i < to; i++ {
		r.Occupy(spread(i), i > 0, spread(i-1), Host, Ref(i))
	}
}

func TestEveryBlockIsFoundAfterEverySplit(t *testing.T) {
	const n = 1_000_000
	r := New()
	chain(r, 0, n)
	if r.Blocks() != n {
		t.Fatalf("%d blocks, want %d", r.Blocks(), n)
	}
	checkIndex(t, &r.index, n)
	for i := range 2 * n {
		key := spread(i)
		id := r.Find(&key)
		if i >= n {
			if id != None {
				t.Fatalf("absent key %d is entry %d", i, id)
			}
			continue
		}
		if e := r.At(id); e.Key != key || e.Slots != [NumLevels]Ref{Ref(i), NoRef} {
			t.Fatalf("key %d: entry %+v", i, e)
		}
	}
	if per := r.Bytes() / n; per < 44 || per > 70 {
		t.Errorf("%d bytes per block, want 44 to 70", per)
	}
	if r.index.continued != 0 {
		t.Errorf("%d segments could not be split, want none", r.index.continued)
	}
	before := r.Bytes()
	for i := n - 1; i >= 0; i-- {
		key := spread(i)
		r.Vacate(r.Find(&key), Host)
	}
	checkIndex(t, &r.index, 0)
	for id, e := range r.All {
		t.Fatalf("entry %d is left: %+v", id, e)
	}
	chain(r, n, 2*n)
	if after := r.Bytes(); after > before+before/20 {
		t.Errorf("%d bytes after as many blocks came again, before %d", after, before)
	}
}

func TestChurnLeavesExactlyTheBlocksThatWereNotVacated(t *testing.T) {
	const keys = 20_000
	r, random := New(), rand.New(rand.NewPCG(3, 4))
	present := map[int]ID{}
	for range 20 * keys {
		i := random.IntN(keys)
		if id, ok := present[i]; ok {
			r.Vacate(id, Disk)
			delete(present, i)
		} else {
			present[i], _ = r.Occupy(spread(i), false, kv.StoredKey{}, Disk, Ref(i))
		}
	}
	checkIndex(t, &r.index, len(present))
	for i := range keys {
		want, ok := present[i]
		if !ok {
			want = None
		}
		if key := spread(i); r.Find(&key) != want {
			t.Fatalf("key %d is entry %d, want %d", i, r.Find(&key), want)
		}
	}
	if made := r.entries.made; made > keys {
		t.Errorf("%d ids for at most %d blocks at a time", made, keys)
	}
}

func TestFindAllAgreesWithFind(t *testing.T) {
	r := New()
	chain(r, 0, 50_000)
	for _, n := range []int{0, 1, batchKeys - 1, batchKeys, batchKeys + 1, 1000} {
		keys, ids := make([]kv.StoredKey, n), make([]ID, n+1)
		for i := range keys {
			keys[i] = spread(49_500 + i)
		}
		ids[n] = 7
		r.FindAll(keys, ids)
		for i := range keys {
			if want := r.Find(&keys[i]); ids[i] != want || (want == None) != (i >= 500) {
				t.Fatalf("key %d of %d: FindAll says %d, Find %d", i, n, ids[i], want)
			}
		}
		if ids[n] != 7 {
			t.Fatalf("FindAll of %d keys wrote beyond them", n)
		}
	}
}

func TestEntriesStayWhereTheyAreWhileTheRegistryGrows(t *testing.T) {
	r := New()
	chain(r, 0, 100)
	var before [100]*Entry
	for i := range before {
		key := spread(i)
		before[i] = r.At(r.Find(&key))
	}
	chain(r, 100, 100_000)
	for i, e := range before {
		key := spread(i)
		if r.At(r.Find(&key)) != e || e.Key != key || e.Slots[Host] != Ref(i) {
			t.Fatalf("entry %d moved or changed: %+v", i, e)
		}
	}
}

func TestGhostKeepsItsIDWhenItsBlockComes(t *testing.T) {
	r := New()
	_, ghost := r.Occupy(spread(1), true, spread(0), Disk, 5)
	if e := r.At(ghost); e.Occupied() || e.Refs != 1 || e.Children != [NumLevels]uint32{0, 1} {
		t.Fatalf("ghost %+v", e)
	}
	id, parent := r.Occupy(spread(0), false, kv.StoredKey{}, Host, 6)
	if id != ghost || parent != None || r.Blocks() != 2 {
		t.Fatalf("block is entry %d with parent %d, %d blocks, want entry %d without parent, 2 blocks", id, parent, r.Blocks(), ghost)
	}
}

func TestFreedIDsAreUsedAgain(t *testing.T) {
	r := New()
	id, _ := r.Occupy(spread(0), false, kv.StoredKey{}, Host, 1)
	other, _ := r.Occupy(spread(1), false, kv.StoredKey{}, Host, 2)
	r.Vacate(other, Host)
	r.Vacate(id, Host)
	for _, want := range []ID{id, other, 2} {
		if got, _ := r.Occupy(spread(10+int(want)), false, kv.StoredKey{}, Disk, 3); got != want {
			t.Errorf("entry %d, want %d", got, want)
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	r := New()
	chain(r, 0, 10_000)
	keys, ids := make([]kv.StoredKey, 100), make([]ID, 100)
	for i := range keys {
		keys[i] = spread(9_950 + i)
	}
	next := 10_000
	for name, f := range map[string]func(){
		"Find":    func() { ids[0] = r.Find(&keys[3]) },
		"FindAll": func() { r.FindAll(keys, ids) },
		"Occupy and Vacate": func() {
			id, _ := r.Occupy(spread(next), true, spread(next-1), Host, 1)
			r.Vacate(id, Host)
			next++
		},
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestMisuseThatLosesASlotPanics(t *testing.T) {
	for want, f := range map[string]func(r *Registry, id ID){
		"has a slot in this tier already": func(r *Registry, _ ID) { r.Occupy(spread(0), false, kv.StoredKey{}, Host, 2) },
		"is given no slot":                func(r *Registry, _ ID) { r.Occupy(spread(0), false, kv.StoredKey{}, Disk, NoRef) },
		"has no slot in this tier":        func(r *Registry, id ID) { r.Vacate(id, Disk) },
		"out of the range of a Ref":       func(*Registry, ID) { MakeRef(0, 1<<RefSlotBits) },
		"or slot is out of the range":     func(*Registry, ID) { MakeRef(MaxExtents, 0) },
	} {
		t.Run(want, func(t *testing.T) {
			r := New()
			id, _ := r.Occupy(spread(0), false, kv.StoredKey{}, Host, 1)
			defer func() {
				if got, _ := recover().(string); !strings.HasPrefix(got, "BUG: ") || !strings.Contains(got, want) {
					t.Errorf("panic %q, want one with %q", got, want)
				}
				if e := r.At(id); r.Blocks() != 1 || e.Slots != [NumLevels]Ref{1, NoRef} {
					t.Errorf("%d blocks, entry %+v", r.Blocks(), e)
				}
			}()
			f(r, id)
		})
	}
}

func TestRefNamesPartAndSlot(t *testing.T) {
	for _, want := range [][2]uint32{{0, 0}, {0, 1<<RefSlotBits - 1}, {1, 0}, {7, 12345}, {MaxExtents - 1, 1<<RefSlotBits - 1}} {
		r := MakeRef(want[0], want[1])
		if r == NoRef || r.Extent() != want[0] || r.Slot() != want[1] {
			t.Errorf("part %d slot %d: ref %x names part %d slot %d", want[0], want[1], uint32(r), r.Extent(), r.Slot())
		}
	}
}

func TestExpectedRegistryHoldsWhatAGrownOneDoes(t *testing.T) {
	for _, expected := range []int{0, 1, 700, 20_000} {
		r := New()
		r.Expect(expected)
		before := len(r.index.states)
		const n = 20_000
		for i := range uint64(n) {
			r.Occupy(spread(int(i)), false, kv.StoredKey{}, Host, MakeRef(0, uint32(i)))
		}
		for i := range uint64(n) {
			key := spread(int(i))
			if id := r.Find(&key); id == None || r.At(id).Slots[Host] != MakeRef(0, uint32(i)) {
				t.Fatalf("expected %d: block %d is lost", expected, i)
			}
		}
		if after := len(r.index.states); expected == n && after != before {
			t.Errorf("%d segments grew to %d although all blocks were expected", before, after)
		}
		r.Expect(1 << 20) // too late: nothing happens
		if r.Blocks() != n {
			t.Errorf("%d blocks, want %d", r.Blocks(), n)
		}
	}
	r := New()
	r.Occupy(spread(1), false, kv.StoredKey{}, Host, 1)
	if id, ok := r.TryOccupy(spread(1), false, kv.StoredKey{}, Host, 2); ok || r.At(id).Slots[Host] != 1 {
		t.Error("a second slot in one tier was given")
	}
}
