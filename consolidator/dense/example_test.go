package dense_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
)

// An entry keeps its slot, so that other tables can store the slot instead of the key.
func Example() {
	var hits dense.Table[uint32]
	slot, ok := hits.Insert(0xfeed)
	fmt.Println("inserted:", ok)
	*hits.At(slot)++

	again, ok := hits.Find(0xfeed)
	fmt.Println("found:", ok, again == slot, "value:", *hits.At(again))
	hits.Remove(slot)
	fmt.Println("entries:", hits.Len())
	// Output:
	// inserted: true
	// found: true true value: 1
	// entries: 0
}
