package shape_test

import (
	"encoding/json"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Rank 0 has two blocks of 16 tokens on its device, one in host memory and two on disk. Rank 1
// has a block on its device and one on disk.
func ExampleSummary() {
	var s shape.Summary
	s.Add("0", index.Hits{kv.TierDevice: 2, kv.TierHost: 1, kv.TierDisk: 2}, 16)
	s.Add("1", index.Hits{kv.TierDevice: 1, kv.TierDisk: 1}, 16)
	text, err := json.Marshal(&s)
	fmt.Println(string(text), err)
	fmt.Println(shape.ModelOf("m", ""), shape.ModelOf("m", "acme"))
	// Output:
	// {"longest_matched":80,"gpu":32,"dp":{"0":32,"1":16},"cpu":48,"disk":80} <nil>
	// m m:acme
}
