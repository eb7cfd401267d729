package blockmgr

// evictionOrder holds the slots of one tier that may be evicted now, least
// recently used first: a binary heap over slot.tick whose positions are kept in
// the slots, so that any slot can be taken out. Only leaves are in it (blocks
// without children in the tier), which makes it leaf-first; a parent enters
// with its own age when its last child leaves.
type evictionOrder struct {
	heap []uint32
}

// place puts slot ref where its tick belongs, adding it when it is not there.
func (o *evictionOrder) place(slots []slot, ref uint32) {
	if slots[ref].heap < 0 {
		o.heap = append(o.heap, ref)
		slots[ref].heap = int32(len(o.heap) - 1)
	}
	o.up(slots, int(slots[ref].heap))
	o.down(slots, int(slots[ref].heap))
}

// remove takes slot ref out when it is in.
func (o *evictionOrder) remove(slots []slot, ref uint32) {
	i := int(slots[ref].heap)
	if i < 0 {
		return
	}
	last := len(o.heap) - 1
	o.swap(slots, i, last)
	o.heap = o.heap[:last]
	slots[ref].heap = -1
	if i < last {
		o.up(slots, i)
		o.down(slots, i)
	}
}

// victim is the slot to evict first, none when nothing may be evicted.
func (o *evictionOrder) victim() uint32 {
	if len(o.heap) == 0 {
		return none
	}
	return o.heap[0]
}

func (o *evictionOrder) less(slots []slot, i, j int) bool {
	return slots[o.heap[i]].tick < slots[o.heap[j]].tick
}

func (o *evictionOrder) swap(slots []slot, i, j int) {
	o.heap[i], o.heap[j] = o.heap[j], o.heap[i]
	slots[o.heap[i]].heap = int32(i)
	slots[o.heap[j]].heap = int32(j)
}

func (o *evictionOrder) up(slots []slot, i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !o.less(slots, i, parent) {
			return
		}
		o.swap(slots, i, parent)
		i = parent
	}
}

func (o *evictionOrder) down(slots []slot, i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(o.heap); c++ {
			if o.less(slots, c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		o.swap(slots, i, least)
		i = least
	}
}
