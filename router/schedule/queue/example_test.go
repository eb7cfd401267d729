package queue_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// The shortest prompt goes first.
func Example() {
	tokens := int64(1000) // a worker is busy beyond this pending prefill
	q, err := queue.New(queue.Options{Class: queue.Class{ThresholdTokens: &tokens, Discipline: queue.WSPT}})
	if err != nil {
		panic(err)
	}
	free := false
	busy := func(*queue.Item) bool { return !free }
	for _, prompt := range []int{4000, 500} {
		i := &queue.Item{Tokens: prompt}
		if q.Waits(i, busy) {
			if err := q.Push(i); err != nil {
				panic(err)
			}
		}
	}
	free = true
	for i := q.Next(busy); i != nil; i = q.Next(busy) {
		q.Take(i) // or q.Hold, to wait for a better worker
		fmt.Println(i.Tokens, q.Len())
	}
	// Output:
	// 500 1
	// 4000 0
}
