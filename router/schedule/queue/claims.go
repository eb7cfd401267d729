package queue

import "github.com/blockyard-ai/blockyard/internal/kv"

// Held reports whether some item is held: see Item.Favourite.
func (q *Queue) Held() bool { return len(q.held) > 0 }

// Claims calls visit with the claims of the held items that go before i: see Item.Favourite. visit may get a
// worker several times. i waits, or arrives with its Arrival, Tokens and CachedTokens set.
//
// An arriving item goes behind all requests of other classes. A waiting item that Next has returned
// goes before them, because its class is next. The requests of a lane count together: all
// of them go before i, or none.
func (q *Queue) Claims(i *Item, visit func(favourite kv.Worker, tokens int)) {
	if !i.Waiting() {
		c := q.classes[i.Class]
		i.score, i.pushNumber = c.Discipline.score(i, c.Class), q.pushes+1
	}
	for l := range q.held {
		switch {
		case l == i.lane:
		case l.class.number != i.Class && i.Waiting():
		case l.class.number == i.Class && i.before(l.waiting[0]):
		default:
			visit(l.key.worker, l.tokens)
		}
	}
}

// WakeHeld makes Next try the requests whose favourite is free for their class, because time alone may
// have reduced the load of a worker. It returns whether there are any.
func (q *Queue) WakeHeld(free func(class int, favourite kv.Worker) bool) (some bool) {
	for l := range q.held {
		if free(l.class.number, l.key.worker) {
			q.wake(l)
			some = true
		}
	}
	return some
}
