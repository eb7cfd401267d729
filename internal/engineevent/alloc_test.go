package engineevent

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// largeBatch is a step that stores 128 blocks of 16 tokens in eight sequences
// and evicts sixteen.
func largeBatch() *Batch {
	b := &Batch{Timestamp: ts, HasRank: true}
	token := uint32(1)
	for s := range 8 {
		e := Event{
			Kind: kvevent.Stored, BlockSize: 16, Medium: "GPU", LoRAName: "adapter-a", SpecKind: "full_attention",
			Parent: kv.EngineHash(s) << 60, HasParent: s > 0,
		}
		if s == 0 {
			e.Salt = "tenant-a"
		}
		for range 16 {
			e.BlockHashes = append(e.BlockHashes, kv.EngineHash(token)*0x9e3779b97f4a7c15)
			for range 16 {
				e.Tokens = append(e.Tokens, token*7919%128000)
				token++
			}
		}
		b.Events = append(b.Events, e)
	}
	for i := range 16 {
		b.Events = append(b.Events, Event{Kind: kvevent.Removed, BlockHashes: hashes(kv.EngineHash(i) << 40), Medium: "GPU"})
	}
	return b
}

func TestDecodeAllocatesNothingInSteadyState(t *testing.T) {
	withObjects := wire(t, list{ts, list{dict{
		"type", "BlockStored", "block_hashes", list{1, []byte("0123456789abcdef")}, "token_ids", list{list{1, 2}, list{2, 3}}, "block_size", 1,
		"lora_name", "ad", "extra_keys", list{list{"ad", list{string(make([]byte, 64)), 1}, "tenant"}, nil},
		"block_mm_infos", list{nil, dict{"mm_objects", list{dict{"mm_hash", 42}}}},
	}}, 0})
	payloads := [][]byte{AppendBatch(nil, largeBatch()), withObjects}
	for _, v := range golden(t) {
		payloads = append(payloads, v)
	}
	var d Decoder
	var b Batch
	decodeAll := func() {
		for _, p := range payloads {
			if err := d.Decode(p, &b); err != nil || len(b.Bad) > 0 {
				t.Fatalf("%v, bad %v", err, b.Bad)
			}
		}
	}
	decodeAll()
	if n := testing.AllocsPerRun(100, decodeAll); n != 0 {
		t.Errorf("%v allocations for %d batches", n, len(payloads))
	}
}

func TestAppendBatchAllocatesNothingIntoALargeEnoughBuffer(t *testing.T) {
	batch := largeBatch()
	buf := make([]byte, 0, 1<<16)
	if n := testing.AllocsPerRun(100, func() { AppendBatch(buf, batch) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecode128Blocks(b *testing.B) {
	payload := AppendBatch(nil, largeBatch())
	var d Decoder
	var batch Batch
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if err := d.Decode(payload, &batch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendBatch128Blocks(b *testing.B) {
	batch := largeBatch()
	buf := AppendBatch(nil, batch)
	b.ReportAllocs()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		buf = AppendBatch(buf[:0], batch)
	}
}
