package index

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// benchWorld is an index of 16 workers that hold parts of 64 prompts of 512 blocks.
func benchWorld(b *testing.B) (x *Index, prompts [][]kv.LocalHash, stored [][]kvevent.StoredBlock) {
	b.Helper()
	x, err := New(Options{MaxBytes: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	for seed := range 64 {
		var locals []kv.LocalHash
		for i := range 512 {
			locals = append(locals, kv.LocalHash(kv.Digest(kv.SequenceHash(seed*1000+i), kv.TierDevice)))
		}
		var blocks []kvevent.StoredBlock
		for i, h := range kv.AppendSequence(nil, locals) {
			blocks = append(blocks, kvevent.StoredBlock{Hash: h, Local: locals[i]})
		}
		prompts, stored = append(prompts, locals), append(stored, blocks)
	}
	for w := range 16 {
		worker := kv.Worker{ID: kv.WorkerID(w + 1)}
		if err := x.SetMember(worker, 0, true); err != nil {
			b.Fatal(err)
		}
		for i, blocks := range stored {
			e := kvevent.RouterEvent{Owner: kv.WorkerOwner(worker), Kind: kvevent.Stored, Blocks: blocks[:32*(1+(w+i)%16)]}
			if err := x.Apply(&e); err != nil {
				b.Fatal(err)
			}
		}
	}
	return x, prompts, stored
}

func BenchmarkMatch512Blocks16Workers(b *testing.B) {
	x, prompts, _ := benchWorld(b)
	var m Matches
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		x.Match(&m, prompts[i%len(prompts)], Continuation)
	}
}

func BenchmarkApplyStoreAndRemove64Blocks(b *testing.B) {
	x, _, stored := benchWorld(b)
	who := kv.WorkerOwner(kv.Worker{ID: 99})
	var hashes []kv.SequenceHash
	for _, s := range stored[0][:64] {
		hashes = append(hashes, s.Hash)
	}
	store := kvevent.RouterEvent{Owner: who, Kind: kvevent.Stored, Blocks: stored[0][:64]}
	remove := kvevent.RouterEvent{Owner: who, Kind: kvevent.Removed, Removed: hashes}
	b.ReportAllocs()
	for b.Loop() {
		_ = x.Apply(&store)
		_ = x.Apply(&remove)
	}
}

// BenchmarkMatch8192Blocks: a long prompt, stored in turns of 1,000 blocks, of which four workers hold all and four a
// half.
func BenchmarkMatch8192Blocks(b *testing.B) {
	x, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	var blocks []kvevent.StoredBlock
	prompt := make([]kv.LocalHash, 8192)
	for i := range prompt {
		prompt[i] = kv.LocalHash(kv.Digest(kv.SequenceHash(i), kv.TierDevice))
	}
	for i, h := range kv.AppendSequence(nil, prompt) {
		blocks = append(blocks, kvevent.StoredBlock{Hash: h, Local: prompt[i]})
	}
	for w := range 8 {
		worker := kv.Worker{ID: kv.WorkerID(w + 1)}
		if err := x.SetMember(worker, 0, true); err != nil {
			b.Fatal(err)
		}
		e := kvevent.RouterEvent{Owner: kv.WorkerOwner(worker), Kind: kvevent.Stored}
		for at := 0; at < len(blocks)>>(w/4); at += 1000 {
			e.Blocks = blocks[at:min(at+1000, len(blocks)>>(w/4))]
			if at > 0 {
				e.Parent, e.HasParent = blocks[at-1].Hash, true
			}
			if err := x.Apply(&e); err != nil {
				b.Fatal(err)
			}
		}
	}
	var m Matches
	for b.Loop() {
		x.Match(&m, prompt, Continuation)
	}
}
