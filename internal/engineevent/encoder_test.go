package engineevent

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// fullBatch uses every field of every kind of event.
func fullBatch() *Batch {
	return &Batch{
		Timestamp: ts, Rank: 70000, HasRank: true,
		Events: []Event{
			{
				Kind: kvevent.Stored, BlockHashes: hashes(h1, h2), Parent: 1<<64 - 1, HasParent: true, Tokens: []uint32{1, 200, 70000, 1<<32 - 1, 5},
				BlockSize: 2, Eagle: true, LoRAName: "adapter-a", Salt: "tenant-a", Multimodal: [][]uint64{nil, {1, 1 << 63}}, Medium: "CPU",
				Locality: "LOCAL", Ownership: "peer", Group: 3, SpecKind: "sliding_window", SlidingWindow: 4096,
			},
			{Kind: kvevent.Stored, Group: NoGroup},
			{
				Kind: kvevent.Removed, BlockHashes: hashes(0, 1<<63), Medium: "STORAGE", Locality: "REMOTE", Ownership: "peer", Group: 0,
				SpecKind: "mamba", SlidingWindow: 1,
			},
			{Kind: kvevent.Removed, Group: NoGroup},
			{Kind: kvevent.Cleared, Medium: "CPU", Locality: "LOCAL", Ownership: "peer", Group: NoGroup},
			{Kind: kvevent.Cleared, Group: NoGroup},
		},
	}
}

func TestEveryFieldOfAnEngineBatchSurvivesEncoding(t *testing.T) {
	want := fullBatch()
	var got Batch
	if err := new(Decoder).Decode(AppendBatch(nil, want), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got, visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBatchWithoutRankStillHasThreeElements(t *testing.T) {
	got := AppendBatch([]byte("kept"), &Batch{Timestamp: ts, Rank: 4})
	if want := append([]byte("kept"), wire(t, list{ts, list{}, nil})...); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestStoredEventOfASaltedRequestKeepsVLLMsKeyOrder(t *testing.T) {
	e := stored(func(e *Event) { e.Salt, e.LoRAName, e.Multimodal = "tenant", "ad", [][]uint64{{7}} })
	got := AppendBatch(nil, &Batch{Timestamp: ts, HasRank: true, Events: []Event{e}})
	want := wire(t, list{ts, list{dict{
		"type", "BlockStored", "block_hashes", list{uint64(h1)}, "parent_block_hash", nil, "token_ids", list{1, 2, 3, 4}, "block_size", 4,
		"lora_id", nil, "medium", "GPU", "lora_name", "ad", "cache_salt", "tenant",
		"block_mm_infos", list{dict{"mm_objects", list{dict{"mm_hash", 7, "offsets", list{}}}}},
	}}, 0})
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestEncodingAnEventWithoutKindIsABug(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	AppendBatch(nil, &Batch{Events: make([]Event, 1)})
}
