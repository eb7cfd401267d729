package miss_test

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/miss"
)

// A prompt of three blocks had its first two evicted from worker 2 before it came.
func Example() {
	now := time.Unix(1000, 0)
	h := miss.NewMemory(1024, now).Of()
	h.Removed(kv.WorkerOwner(kv.Worker{ID: 2}), kv.TierDevice, []kv.SequenceHash{11, 12}, miss.Moment{At: now.Add(time.Second)})

	p := miss.Prompt{Tokens: 49, BlockSize: 16, Blocks: []kv.SequenceHash{11, 12, 13}, Worker: kv.Worker{ID: 1}, Decided: now.Add(4 * time.Second)}
	r := h.Explain(&p, &miss.Outcome{Cacheable: 48, Computed: now.Add(5 * time.Second)})
	for _, part := range r.Parts {
		fmt.Println(part.Tokens, part.Cause, part.Owner, part.Ago)
	}
	// Output:
	// 32 evicted worker 2/0 3s
	// 16 new_content worker 0/0 0s
	// 1 last_block worker 0/0 0s
}
