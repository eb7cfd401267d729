package queue

import (
	"cmp"
	"slices"
)

// Replace returns a queue with other options that takes over the waiting requests and counters of q,
// which must not be used afterwards. A request keeps its arrival and its place among equals. classify
// sets the class of each request by the new profile. Limits count for later requests: a waiting one is
// never refused. The error names the option that is out of range; q is unchanged then.
func (q *Queue) Replace(o Options, classify func(*Item)) (*Queue, error) {
	fresh, err := New(o)
	if err != nil {
		return nil, err
	}
	fresh.workers, fresh.pushes = q.workers, q.pushes
	var waiting []*Item
	for _, l := range q.lanes {
		waiting = append(waiting, l.waiting...)
	}
	slices.SortFunc(waiting, func(a, b *Item) int { return cmp.Compare(a.pushNumber, b.pushNumber) })
	for _, i := range waiting {
		q.remove(i)
	}
	fresh.stats = q.stats // its gauges are 0 now
	for _, i := range waiting {
		classify(i)
		c := fresh.classes[i.Class]
		i.score = c.Discipline.score(i, c.Class)
		if !i.Overdue {
			i.arrival = fresh.arrivals.PushBack(i)
		}
		if c.stats.pending == 0 {
			fresh.ring.Add(&c.share)
		}
		fresh.count(i, 1)
		fresh.enter(i)
	}
	return fresh, nil
}
