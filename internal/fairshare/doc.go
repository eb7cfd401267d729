// Package fairshare decides which of several queues goes next, by deficit round robin.
//
//	var ring fairshare.Ring[*queue]
//	ring.Add(&fairshare.Member[*queue]{Value: a, Quantum: 512})
//	ring.Add(&fairshare.Member[*queue]{Value: b, Quantum: 128})
//	m := ring.Next(func(q *queue) int { return q.first().tokens })
//
// While both queues have requests, the costs of their requests have the ratio of their quanta. A member
// gets its quantum once per turn, and keeps its turn while the deficit pays for its first request. A
// member that waits for something else (cost 0) keeps its deficit and earns nothing. Remove forgets
// the deficit: a queue without requests saves nothing up.
//
// Next takes time linear in the number of members, whatever the costs are. A Ring is not safe for
// concurrent use, and its owner bounds the number of members.
package fairshare
