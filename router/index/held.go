package index

// Held is how many (block, tier) pairs the member at a place of m, a list of members of
// this index or of another one, was told to hold itself, what had no room included. It
// is 0 for a worker that is not known. It never waits, and costs little while lists are
// alike.
func (x *Index) Held(m *Members, at int) uint64 {
	v, w := x.view.Load(), m.List[at].Worker
	if at >= len(v.holders) || v.members.List[at].Worker != w {
		var known bool
		if at, known = v.members.Find(w); !known {
			return 0
		}
	}
	return v.holders[at].held.Load()
}
