package source

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func TestAnswersWithMissingOrMisplacedChunksAreVoid(t *testing.T) {
	reply := func(change func(*kvevent.QueryReply)) *kvevent.QueryReply {
		r := &kvevent.QueryReply{PublisherID: 7, Kind: kvevent.QueryTreeDump, LastEventID: 5,
			Events: []kvevent.RouterEvent{{ID: 1}}}
		change(r)
		return r
	}
	first := reply(func(*kvevent.QueryReply) {})
	for name, second := range map[string]*kvevent.QueryReply{
		"missing chunk":     reply(func(r *kvevent.QueryReply) { r.Chunk = 2 }),
		"repeated chunk":    reply(func(*kvevent.QueryReply) {}),
		"foreign publisher": reply(func(r *kvevent.QueryReply) { r.Chunk, r.PublisherID = 1, 8 }),
		"another dump":      reply(func(r *kvevent.QueryReply) { r.Chunk, r.DumpID = 1, 9 }),
		"another kind":      reply(func(r *kvevent.QueryReply) { r.Chunk, r.Kind = 1, kvevent.QueryEvents }),
		"too many blocks": reply(func(r *kvevent.QueryReply) {
			r.Chunk, r.Events = 1, []kvevent.RouterEvent{{Removed: make([]kv.SequenceHash, MaxAnswerBlocks+1)}}
		}),
	} {
		a := NewAssembly(7, &kvevent.QueryRequest{})
		if done, err := a.Add(first); done || err != nil {
			t.Fatalf("first chunk: done %v, %v", done, err)
		}
		if _, err := a.Add(second); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	// A publisher that sends events of no blocks without end is cut off too.
	if got := answerSize([]kvevent.RouterEvent{{}, {Blocks: make([]kvevent.StoredBlock, 2)}, {}}); got != 5 {
		t.Errorf("size %d of two blocks in three events, want 5", got)
	}
	a := NewAssembly(7, &kvevent.QueryRequest{})
	for i := range 3 {
		done, err := a.Add(reply(func(r *kvevent.QueryReply) { r.Chunk, r.Final = uint32(i), i == 2 }))
		if err != nil || done != (i == 2) {
			t.Fatalf("chunk %d: done %v, %v", i, done, err)
		}
	}
	if len(a.answer.Events) != 3 || a.answer.LastEventID != 5 {
		t.Errorf("answer %+v, want three events up to 5", a.answer)
	}
	for _, id := range []uint64{3, 4} {
		want := map[uint64]uint32{3: 7, 4: 0}[id]
		a := NewAssembly(7, &kvevent.QueryRequest{DumpID: 3, FirstChunk: 7})
		if _, err := a.Add(reply(func(r *kvevent.QueryReply) { r.DumpID, r.Chunk = id, want })); err != nil || a.answer.FirstChunk != want {
			t.Errorf("dump %d instead of the rest of dump 3: from chunk %d, %v", id, a.answer.FirstChunk, err)
		}
	}
}
