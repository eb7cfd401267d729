package schedule

// ranked is what a ranking keeps: it knows its order and remembers its place.
type ranked[T any] interface {
	before(T) bool
	place() *int
}

// noPlace is the place of what is in no ranking.
const noPlace = -1

// ranking is a binary heap whose members can be moved and taken out.
type ranking[T ranked[T]] []T

func (h *ranking[T]) push(x T) {
	*x.place() = len(*h)
	*h = append(*h, x)
	h.up(len(*h) - 1)
}

// remove takes out the member at place i.
func (h *ranking[T]) remove(i int) {
	s := *h
	var none T
	last := len(s) - 1
	*s[i].place() = noPlace
	if i != last {
		s[i] = s[last]
		*s[i].place() = i
	}
	s[last] = none
	*h = s[:last]
	if i != last {
		h.fix(i)
	}
}

// fix restores the order after the member at place i has changed.
func (h ranking[T]) fix(i int) {
	h.down(i)
	h.up(i)
}

func (h ranking[T]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].place(), *h[j].place() = i, j
}

func (h ranking[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h ranking[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
