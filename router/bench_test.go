package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

func BenchmarkFindBestMatch12kTokens8Workers(b *testing.B) {
	t := sourcetest.NewTransport()
	r, err := New(Options{}, t)
	if err != nil {
		b.Fatal(err)
	}
	tokens := make([]uint32, 12000)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	for id := range uint64(8) {
		p := sourcetest.NewPublisher(10+id, sourcetest.WorkerOwner(id+1), 0)
		p.Meta.BlockSize = 16
		now := time.Now()
		r.feeds.Frame(p.Announce(), now)
		var h kv.Hasher
		e := kvevent.RouterEvent{Owner: p.Meta.Owner, Kind: kvevent.Stored, ID: 1}
		locals := h.AppendLocals(nil, tokens, 16, kv.LocalSeed("", ""))
		for i, s := range kv.AppendSequence(nil, locals[:90*id]) {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: s, Local: locals[i]})
		}
		r.feeds.Frame(source.Frame{Kind: source.FrameEvents, Data: kvevent.AppendEnvelope(nil, &kvevent.Envelope{
			PublisherID: 10 + id, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})}, now)
	}
	for _, states := range []bool{false, true} {
		b.Run(fmt.Sprintf("states=%v", states), func(b *testing.B) {
			q := &Request{ID: "r", Tokens: tokens, UpdateStates: states}
			b.ReportAllocs()
			for b.Loop() {
				m, err := r.FindBestMatch(b.Context(), q)
				if err != nil || m.Worker.ID != 8 {
					b.Fatal(m, err)
				}
				r.Free("", "r")
			}
		})
	}
}
