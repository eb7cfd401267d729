package merge_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/merge"
)

func ExampleMerger() {
	who := kv.WorkerOwner(kv.Worker{ID: 1})
	events := []kvevent.RouterEvent{
		{Owner: who, Kind: kvevent.Removed, Removed: []kv.SequenceHash{91}},
		{Owner: who, Kind: kvevent.Stored, Blocks: []kvevent.StoredBlock{{Hash: 11, Local: 1}}},
		{Owner: who, Kind: kvevent.Removed, Removed: []kv.SequenceHash{90}},
		{Owner: who, Kind: kvevent.Stored, Parent: 11, HasParent: true, Blocks: []kvevent.StoredBlock{{Hash: 12, Local: 2}}},
	}
	var m merge.Merger
	fmt.Println(m.Take(events), "events taken")
	for _, e := range m.Events {
		fmt.Println(e.Kind, e.Removed, e.Blocks)
	}
	// Output:
	// 4 events taken
	// removed [91 90] []
	// stored [] [{11 1} {12 2}]
}
