package groups_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/router/index/groups"
)

// A worker has the first four blocks of a prompt, and the window before the second one.
func ExampleTable_Fit() {
	var t groups.Table
	grow := func(int64) bool { return true }
	prompt := []kv.SequenceHash{11, 22, 33, 44}
	t.Store(groups.Block{Hash: 22, Group: 1}, 1, kv.TierDevice, grow)
	model := &groups.Model{Page: 16, Groups: kvgroup.Groups{
		{Kind: kvgroup.Full, BlockSize: 16}, {Kind: kvgroup.Sliding, Window: 16, BlockSize: 16},
	}}
	fmt.Println(t.Fit(model, prompt, 4, 0, 1), "blocks")
	// Output: 2 blocks
}
