package kvevent

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fullBatch uses every field of every kind of event.
func fullBatch() *EngineBatch {
	return &EngineBatch{
		Timestamp: ts, Rank: 70000, HasRank: true,
		Events: []EngineEvent{
			{
				Kind: Stored, BlockHashes: hashes(h1, h2), Parent: 1<<64 - 1, HasParent: true, Tokens: []uint32{1, 200, 70000, 1<<32 - 1, 5},
				BlockSize: 2, Eagle: true, LoRAName: "adapter-a", Salt: "tenant-a", Multimodal: [][]uint64{nil, {1, 1 << 63}}, Medium: "CPU",
				Locality: "LOCAL", Ownership: "peer", Group: 3, SpecKind: "sliding_window", SlidingWindow: 4096,
			},
			{Kind: Stored, Group: NoGroup},
			{
				Kind: Removed, BlockHashes: hashes(0, 1<<63), Medium: "STORAGE", Locality: "REMOTE", Ownership: "peer", Group: 0,
				SpecKind: "mamba", SlidingWindow: 1,
			},
			{Kind: Removed, Group: NoGroup},
			{Kind: Cleared, Medium: "CPU", Locality: "LOCAL", Ownership: "peer", Group: NoGroup},
			{Kind: Cleared, Group: NoGroup},
		},
	}
}

func TestEveryFieldOfAnEngineBatchSurvivesEncoding(t *testing.T) {
	want := fullBatch()
	var got EngineBatch
	if err := new(Decoder).Decode(AppendEngineBatch(nil, want), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got, visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBatchWithoutRankStillHasThreeElements(t *testing.T) {
	got := AppendEngineBatch([]byte("kept"), &EngineBatch{Timestamp: ts, Rank: 4})
	if want := append([]byte("kept"), wire(t, list{ts, list{}, nil})...); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestStoredEventOfASaltedRequestKeepsVLLMsKeyOrder(t *testing.T) {
	e := stored(func(e *EngineEvent) { e.Salt, e.LoRAName, e.Multimodal = "tenant", "ad", [][]uint64{{7}} })
	got := AppendEngineBatch(nil, &EngineBatch{Timestamp: ts, HasRank: true, Events: []EngineEvent{e}})
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
	for name, encode := range map[string]func(){
		"engine event": func() { AppendEngineBatch(nil, &EngineBatch{Events: make([]EngineEvent, 1)}) },
		"router event": func() { AppendEnvelope(nil, &Envelope{Events: make([]RouterEvent, 1)}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			encode()
		}()
	}
}
