package approx_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// workerHits returns the hits of each worker in m. The test fails when m is out
// of order, lists a worker twice or lists a worker without hits.
func workerHits(t failer, m *index.Matches) map[kv.Worker]index.Hits {
	t.Helper()
	if !slices.IsSortedFunc(m.Hits, func(a, b index.Hit) int { return cmp.Compare(a.Member, b.Member) }) {
		t.Fatalf("hits are not in order: %v", m.Hits)
	}
	out := make(map[kv.Worker]index.Hits)
	for _, h := range m.Hits {
		w := m.Members.List[h.Member].Worker
		if _, ok := out[w]; ok || h.Hits.Total() == 0 {
			t.Fatalf("worker %s is listed twice or without hits: %v", w, m.Hits)
		}
		out[w] = h.Hits
	}
	return out
}

// newIndex returns an event-driven index that knows workers.
func newIndex(t testing.TB, workers ...kv.Worker) *index.Index {
	t.Helper()
	x, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		if err := x.SetMember(w, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// store applies an event: w stored blocks from..to-1 of a prompt.
func store(t testing.TB, x *index.Index, w kv.Worker, tier kv.Tier, prompt []kv.LocalHash, from, to int) {
	t.Helper()
	seq := kv.AppendSequence(nil, prompt[:to])
	e := kvevent.RouterEvent{Owner: kv.WorkerOwner(w), Tier: tier, Kind: kvevent.Stored}
	if from > 0 {
		e.Parent, e.HasParent = seq[from-1], true
	}
	for i := from; i < to; i++ {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: seq[i], Local: prompt[i]})
	}
	if err := x.Apply(&e); err != nil {
		t.Fatal(err)
	}
}

// series returns n different blocks, first to first+n-1.
func series(first, n int) []kv.LocalHash {
	out := make([]kv.LocalHash, n)
	for i := range out {
		out[i] = kv.LocalHash(first + i)
	}
	return out
}

func worker(id, rank int) kv.Worker { return kv.Worker{ID: kv.WorkerID(id), Rank: kv.DPRank(rank)} }

func device(n uint32) index.Hits { return index.Hits{kv.TierDevice: n} }
