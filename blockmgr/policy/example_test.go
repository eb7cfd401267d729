package policy_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// The least recently used slot is evicted first.
func ExampleLeafLRU() {
	order := policy.NewLeafLRU()
	order.AddExtent(0, 8)
	order.Place(registry.MakeRef(0, 5), 0, 1) // used at tick 1
	order.Place(registry.MakeRef(0, 2), 0, 2)
	order.Place(registry.MakeRef(0, 5), 0, 3) // used again
	victim, ok := order.Victim()
	fmt.Println("evict slot", victim.Slot(), ok)
	// Output:
	// evict slot 2 true
}

// A block is written to disk when it is asked for a second time.
func ExampleFrequencyFilter() {
	filter, err := policy.NewFrequencyFilter(policy.FrequencyOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first time:", filter.ShouldOffload(7))
	fmt.Println("second time:", filter.ShouldOffload(7))
	// Output:
	// first time: false
	// second time: true
}

// The pool that is most over its share gives an extent to the pool that has none.
func ExampleGiver() {
	pools := []policy.Holder{
		{Bytes: 96, Weight: 1, InUse: true},
		{Bytes: 0, Extent: 16, Weight: 1, InUse: true},
	}
	giver, ok := policy.Giver(pools, 1, 96, true)
	fmt.Println("pool", giver, "gives:", ok)
	// Output:
	// pool 0 gives: true
}
