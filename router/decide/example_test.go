package decide_test

import (
	"context"
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Of two idle workers the request goes to the one that has two blocks of the prompt.
func Example() {
	x, err := index.New(index.Options{})
	check(err)
	for id := range kv.WorkerID(2) {
		check(x.SetMember(kv.Worker{ID: id + 1}, 0, true))
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	var hasher kv.Hasher
	locals := hasher.AppendLocals(nil, tokens, 4, kv.HashSeed)
	hashes := kv.AppendSequence(nil, locals)
	check(x.Apply(&kvevent.RouterEvent{
		Owner: kv.WorkerOwner(kv.Worker{ID: 2}), Tier: kv.TierDevice, ID: 1, Kind: kvevent.Stored,
		Blocks: []kvevent.StoredBlock{{Hash: hashes[0], Local: locals[0]}, {Hash: hashes[1], Local: locals[1]}},
	}))
	s, err := schedule.New(schedule.Options{Config: schedule.DefaultConfig(), Members: x.Members})
	check(err)
	r, err := decide.New(decide.Options{Index: x, Scheduler: s, BlockSize: func() int { return 4 }})
	check(err)
	defer r.Close()

	m, err := r.FindBestMatchDetails(context.Background(), &decide.Query{ID: "r1", Tokens: tokens, UpdateStates: true})
	check(err)
	fmt.Printf("worker %s has %d blocks, %d tokens\n", m.Worker, m.OverlapBlocks(), m.CachedTokens)
	check(r.MarkPrefillCompleted("r1")) // at the first token
	r.Free("r1")                        // at the end
	// Output:
	// worker 2/0 has 2 blocks, 8 tokens
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
