package tokens_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
)

// The tokens of a retained block stay, so that a sink can encode the block.
func Example() {
	t := tokens.New(1 << 20)
	t.BlockTokens(11, []uint32{1, 2, 3, 4}, tokens.Identity{BlockSize: 4, Salt: "tenant-a"})
	t.Retain(11)

	var event engineevent.Event
	fmt.Println(t.Describe(11, &event), event.Tokens, event.Salt)
	fmt.Println(t.Describe(12, &event)) // nobody told the tokens of block 12
	t.Release(11)
	// Output:
	// true [1 2 3 4] tenant-a
	// false
}
