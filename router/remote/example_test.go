package remote_test

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/remote"
)

// wire is a bus between two routers in one process.
type wire struct {
	answer func([]byte, time.Time) ([]byte, error)
}

func (w *wire) Cluster() string { return "c" }

func (w *wire) Request(_ context.Context, _ string, request []byte) ([]byte, error) {
	return w.answer(request, time.Now())
}

func (w *wire) AnswerGroup(_, _ string, _ int, answer func([]byte, time.Time) ([]byte, error)) (stop func(), dropped func() uint64, err error) {
	w.answer = answer
	return func() {}, func() uint64 { return 0 }, nil
}

// workers returns an index of worker 7 without blocks.
func workers() *index.Index {
	x, err := index.New(index.Options{})
	if err == nil {
		err = x.SetMember(kv.Worker{ID: 7}, 0, true)
	}
	if err != nil {
		panic(err)
	}
	return x
}

// One router has the blocks, and the other finds them.
func Example() {
	locals := []kv.LocalHash{11, 12, 13}
	held := kvevent.RouterEvent{Owner: kv.WorkerOwner(kv.Worker{ID: 7}), Tier: kv.TierDevice, ID: 1, Kind: kvevent.Stored}
	for i, h := range kv.AppendSequence(nil, locals[:2]) {
		held.Blocks = append(held.Blocks, kvevent.StoredBlock{Hash: h, Local: locals[i]})
	}
	full := workers()
	if err := full.Apply(&held); err != nil {
		fmt.Println(err)
	}
	bus := &wire{}
	served, err := remote.Serve(bus, func(dst *index.Matches, q *remote.Query) (feed.Quality, bool) {
		full.Match(dst, q.Locals, q.Reading)
		return feed.Exact, true
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer served.Stop()

	x := remote.NewClient(remote.Options{Bus: bus}).Index("m", 16, workers())
	var m index.Matches
	x.Match(&m, locals, index.Continuation)
	for _, h := range m.Hits {
		fmt.Println(m.Members.List[h.Member].Worker.ID, h.Hits[kv.TierDevice], m.Quality)
	}
	// Output: 7 2 exact
}
