package blockmgr

import (
	"math"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// pinCounts counts the pins of one session, for each host slot. It costs four
// bytes for every slot of an extent in which the session ever pinned one.
type pinCounts struct{ parts [][]uint32 }

// add counts one pin and returns how many there were. slots is the number of
// slots of the part that ref is in.
func (c *pinCounts) add(ref registry.Ref, slots int) (before uint32) {
	n := int(ref.Part())
	for len(c.parts) <= n {
		c.parts = append(c.parts, nil)
	}
	if c.parts[n] == nil {
		c.parts[n] = make([]uint32, slots)
	}
	before = c.parts[n][ref.Slot()]
	c.parts[n][ref.Slot()]++
	return before
}

// of is the number of pins of a slot.
func (c *pinCounts) of(ref registry.Ref) uint32 {
	n := ref.Part()
	if int(n) >= len(c.parts) || c.parts[n] == nil {
		return 0
	}
	return c.parts[n][ref.Slot()]
}

// sub takes one pin off, of a slot that has some, and returns how many are left.
func (c *pinCounts) sub(ref registry.Ref) (left uint32) {
	at := &c.parts[ref.Part()][ref.Slot()]
	*at--
	return *at
}

// each calls do for every slot that has pins.
func (c *pinCounts) each(do func(ref registry.Ref, n uint32)) {
	for part, counts := range c.parts {
		for i, n := range counts {
			if n > 0 {
				do(registry.MakeRef(uint32(part), uint32(i)), n)
			}
		}
	}
}

// forget drops a part that goes; nothing in it is pinned.
func (c *pinCounts) forget(part uint32) {
	if int(part) < len(c.parts) {
		c.parts[part] = nil
	}
}

// pinLocked pins a slot once more for a session. The first pin is marked in the
// slot's pin word, where the next agent finds it.
func (p *Pool) pinLocked(sess *session, ref registry.Ref, s *tier.Slot) {
	if s.Pins++; s.Pins == 1 {
		p.slots.Host.Pinned++
	}
	part, i := p.slots.Host.At(ref)
	if sess.pins.add(ref, len(part.Slots)) == 0 {
		sess.slots++
		part.Records.SetPins(i, part.Records.Pins(i)|sess.bit)
	}
}

// unpinLocked takes one pin of a session off a slot that it has pinned.
func (p *Pool) unpinLocked(sess *session, ref registry.Ref, s *tier.Slot) {
	if sess.pins.sub(ref) == 0 {
		sess.slots--
		p.clearPinLocked(ref, sess.bit)
	}
	p.dropPinsLocked(s, 1)
	p.slots.LetGo(p.slots.Host, ref, s)
}

// dropPinsLocked takes some of its pins off a slot.
func (p *Pool) dropPinsLocked(s *tier.Slot, n uint32) {
	if s.Pins -= n; s.Pins == 0 {
		p.slots.Host.Pinned--
	}
}

// pinRoomLocked returns how many more slots a session may pin. With Config.SharePins a
// session may pin three quarters of the slots that no other session has pinned, counted
// for the host tier at its full size. A hung session then leaves room for the others.
func (p *Pool) pinRoomLocked(sess *session) int {
	if !p.cfg.SharePins {
		return math.MaxInt
	}
	size := p.sizeLocked(p.slots.Host)
	spare := max(size-(p.slots.Host.Pinned-sess.slots), 0)
	return max(spare-spare/4-sess.slots-sess.reserved, 0)
}

// reserveLocked cuts the candidates of a lookup where the session may pin no further
// slot, and reserves the slots of the others that it has not pinned yet.
func (p *Pool) reserveLocked(sess *session, blocks []Block, found []candidate) []candidate {
	room := p.pinRoomLocked(sess)
	for i := range found {
		c := &found[i]
		if c.ref != registry.NoRef && sess.pins.of(c.ref) > 0 {
			continue
		}
		if room == 0 {
			p.count.PinsRefused++
			p.abandonLocked(blocks, found, i)
			return found[:i]
		}
		room--
		c.reserved = true
		sess.reserved++
	}
	return found
}

// clearPinLocked takes a session's mark out of a slot's pin word.
func (p *Pool) clearPinLocked(ref registry.Ref, bit uint64) {
	part, i := p.slots.Host.At(ref)
	part.Records.SetPins(i, part.Records.Pins(i)&^bit)
}
