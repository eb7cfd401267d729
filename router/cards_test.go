package router

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A worker's card is there before the worker is a member, so that no decision finds the
// worker without it.
func TestCardsComeBeforeMembers(t *testing.T) {
	r, err := New(Options{}, sourcetest.NewTransport())
	if err != nil {
		t.Fatal(err)
	}
	const workers = 300
	join := func(id uint64) {
		a := kvevent.Announcement{PublisherID: id, Owner: sourcetest.WorkerOwner(id), Model: "m", BlockSize: 16,
			Health: kvevent.HealthExact, Card: kvevent.ModelCard{MaxBatchedTokens: 8}}
		r.feeds.Frame(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}, time.Unix(1000, 0))
	}
	join(1)
	m := r.Models("")[0]
	var looking sync.WaitGroup
	looking.Go(func() {
		for seen := 0; seen < workers; {
			list := m.index.Members().List
			for _, member := range list[seen:] {
				if m.cards.of(member.Worker).MaxBatchedTokens == 0 {
					t.Errorf("worker %s is a member without a card", member.Worker)
				}
			}
			seen = len(list)
			runtime.Gosched()
		}
	})
	for id := range uint64(workers - 1) {
		join(id + 2)
	}
	looking.Wait()
}
