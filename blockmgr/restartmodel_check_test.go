package blockmgr

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// sealedBlock is a block in host memory that the next agent must have.
type sealedBlock struct {
	key  kv.StoredKey
	path string
	off  int64
}

func (m *survivor) sealed() map[Slot]sealedBlock {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[Slot]sealedBlock{}
	m.slots.Host.Each(func(ref registry.Ref, s *tier.Slot) {
		if s.State == storage.StateSealed && !m.flipped[m.slots.Host.Name(ref)] {
			part, i := m.slots.Host.At(ref)
			found[m.slots.Host.Name(ref)] = sealedBlock{m.slots.Registry.At(s.Entry).Key, part.Path(), part.Geometry().Offset(i)}
		}
	})
	return found
}

// damage flips a byte or tears a record of a block that nobody has pinned, or
// tears the record of a granted slot, at times.
func (m *survivor) damage(t *rapid.T, sealed map[Slot]sealedBlock) {
	what := rapid.SampledFrom([]string{"nothing", "flip", "tear", "tear a grant"}).Draw(t, "damage")
	if what == "tear a grant" {
		f := m.earlier[draw(t, m.earlier)]
		if len(f.granted) > 0 {
			tearRecord(m.t, m.cfg.HostDir, f.granted[0].slot)
			f.torn = append(f.torn, f.granted[0])
			f.granted = f.granted[1:]
		}
		return
	}
	var targets []Slot
	for s := range sealed {
		targets = append(targets, s)
	}
	for _, f := range m.earlier {
		targets = slices.DeleteFunc(targets, func(s Slot) bool { return slices.Contains(slotsOfPins(f.pinned), s) })
	}
	if len(targets) == 0 || what == "nothing" {
		return
	}
	slices.SortFunc(targets, func(a, b Slot) int {
		return cmp.Or(cmp.Compare(a.Extent, b.Extent), cmp.Compare(a.Index, b.Index))
	})
	hit := rapid.SampledFrom(targets).Draw(t, "slot")
	if what == "flip" {
		flip(m.t, sealed[hit].path, sealed[hit].off)
		m.flipped[hit] = true
		return
	}
	tearRecord(m.t, m.cfg.HostDir, hit)
	delete(sealed, hit)
}

// checkRecovered compares what a new agent found with what there was.
func (m *survivor) checkRecovered(sealed map[Slot]sealedBlock) {
	var earlier []SessionID
	for _, f := range m.m.Previous() {
		earlier = append(earlier, f.Session)
	}
	if want := slices.Sorted(maps.Keys(m.earlier)); !slices.Equal(earlier, want) {
		m.t.Errorf("earlier sessions %v, want %v", earlier, want)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for slot, b := range sealed {
		ref, ok := m.slots.Host.Lookup(slot)
		if !ok || !m.slots.Host.Slot(ref).Resident() || m.slots.Registry.At(m.slots.Host.Slot(ref).Entry).Key != b.key {
			m.t.Errorf("sealed block %s is lost from slot %v", b.key, slot)
		}
	}
}

// check runs after every operation: nobody's slot has changed hands, and pinned
// bytes are right.
func (m *survivor) check(*rapid.T) {
	m.testPool.check()
	for state, all := range map[storage.State][]map[SessionID]*sessionSlots{
		storage.StateGranted: {m.live}, storage.StateQuarantined: {m.ended, m.earlier},
	} {
		for _, sessions := range all {
			for s, has := range sessions {
				m.checkSession(s, has, state)
			}
		}
	}
}

func (m *survivor) checkSession(s SessionID, has *sessionSlots, granted storage.State) {
	for _, f := range has.granted {
		m.checkWriting(s, f, granted)
	}
	for _, f := range has.torn {
		m.checkWriting(s, f, storage.StateQuarantined)
	}
	for _, p := range has.pinned {
		if !bytes.Equal(m.read(p.slot), m.content(&p.block, rightBytes)) {
			m.t.Errorf("slot %v, pinned by session %d, has wrong bytes", p.slot, s)
		}
	}
}

// checkWriting checks a slot that a session may be writing into.
func (m *survivor) checkWriting(s SessionID, f filled, want storage.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ref, ok := m.slots.Host.Lookup(f.slot)
	if !ok || m.slots.Host.Slot(ref).State != want {
		m.t.Errorf("slot %v of session %d is not %s any more", f.slot, s, want)
	}
}
