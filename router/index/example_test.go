package index_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// A worker has the first block of a prompt, and its pool the second one.
func Example() {
	x, err := index.New(index.Options{})
	if err != nil {
		log.Fatal(err)
	}
	worker, pool := kv.Worker{ID: 7}, uint64(1)
	if err := x.SetMember(worker, pool, true); err != nil {
		log.Fatal(err)
	}
	var hasher kv.Hasher
	locals := hasher.AppendLocals(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4, kv.HashSeed)
	hashes := kv.AppendSequence(nil, locals)
	for _, event := range []kvevent.RouterEvent{
		{Owner: kv.WorkerOwner(worker), Tier: kv.TierDevice, ID: 1, Kind: kvevent.Stored,
			Blocks: []kvevent.StoredBlock{{Hash: hashes[0], Local: locals[0]}}},
		{Owner: kv.PoolOwner(pool), Tier: kv.TierHost, ID: 1, Kind: kvevent.Stored, Parent: hashes[0], HasParent: true,
			Blocks: []kvevent.StoredBlock{{Hash: hashes[1], Local: locals[1]}}},
	} {
		if err := x.Apply(&event); err != nil {
			log.Fatal(err)
		}
	}
	var matches index.Matches
	x.Match(&matches, locals, index.Continuation)
	for _, hit := range matches.Hits {
		fmt.Println("worker", matches.Members.List[hit.Member].Worker,
			"device:", hit.Hits[kv.TierDevice], "host:", hit.Hits[kv.TierHost])
	}
	// Output:
	// worker 7/0 device: 1 host: 1
}
