package schedule

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// computes is an estimator for tests: a token that is computed or waits takes a millisecond, and costs others a
// millisecond when it is computed. One that is loaded takes a tenth.
type computes struct{}

func (computes) Prices(in *Selection, prices []price.Price) (why string, ok bool) {
	for k := range prices {
		m := in.At(k)
		h := in.Request.hitsOf(int32(m))
		cached := float64(LocalTokens(h, in.Request.BlockSize))
		wait, compute := float64(in.Loads.PrefillTokens[m]), float64(in.Request.Tokens)-cached
		ms := wait + compute + 1.6*float64(h[kv.TierHost])
		prices[k] = price.Price{Wait: wait, TTFT: ms, Machine: ms, Imposed: compute, Cached: cached}
	}
	return "", true
}

// TestAPrefixThatIsComputedIsCreditedWhereItIs: of prompts with a new start in common the first one
// computes the start, and others join it while waiting for it costs less than computing it again. The
// credit ends with the requests, and the index's hits replace it.
func TestAPrefixThatIsComputedIsCreditedWhereItIs(t *testing.T) {
	s := newScheduler(t, func(o *Options) { o.Config.Price, o.Config.Objective, o.Estimator = true, price.Throughput, computes{} })
	members := fleet(3)
	ask := func(id string, tokens int, hits ...index.Hit) Result {
		t.Helper()
		r := &Request{ID: id, Book: true, Tokens: tokens, BlockSize: 16, TrackPrefill: true, Members: members, Hits: hits,
			Sequence: []kv.SequenceHash{1, 2, 3, 4, 5, 6, 7, 8, kv.SequenceHash(100 + id[0]), kv.SequenceHash(200 + id[0])}}
		got, err := s.Schedule(t.Context(), r)
		if err != nil || got.Mode != ModePrice {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	first := ask("a", 168)
	for _, id := range []string{"b", "c", "d"} {
		if got := ask(id, 168); got.Worker != first.Worker || got.Expected() != hits(8, 0, 0, 0) || got.Hits != (index.Hits{}) || got.CachedTokens != 0 {
			t.Errorf("request %s goes to worker %s with hits %v and %d blocks in flight, want %s with the 8 that are computed there", id, got.Worker, got.Hits, got.InFlight, first.Worker)
		}
	}
	if got := s.account.Columns().PrefillTokens[first.Member]; got != 168+3*40 {
		t.Errorf("%d tokens are to be computed, want 288", got)
	}
	if got := ask("e", 168); got.Worker == first.Worker {
		t.Errorf("request e waits for 288 tokens rather than compute 128 again")
	}
	// What is known of lower tiers is not counted twice, and the last token is computed.
	for _, id := range []string{"a", "b", "c", "d"} {
		if err := s.MarkPrefillCompleted(id); err != nil {
			t.Fatal(err)
		}
	}
	pinned := &Request{Tokens: 128, BlockSize: 16, TrackPrefill: true, Members: members, Sequence: []kv.SequenceHash{1, 2, 3, 4, 5, 6, 7, 8},
		Pinned: &first.Worker, Hits: []index.Hit{{Member: int32(first.Member), Hits: hits(2, 3, 2, 0)}}}
	if got, err := s.Schedule(t.Context(), pinned); err != nil || got.Expected() != hits(7, 0, 0, 0) || got.Hits != hits(2, 3, 2, 0) {
		t.Errorf("hits %v, expected %v, %v; want 7 blocks on the device", got.Hits, got.Expected(), err)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		s.Free(id)
	}
	if got := ask("f", 168); got.Expected() != (index.Hits{}) || got.CachedTokens != 0 {
		t.Errorf("%+v after all requests have ended", got.Hits)
	}
	if got := ask("g", 168, index.Hit{Member: 2, Hits: hits(9, 0, 0, 0)}); got.Member != 2 || got.Hits != hits(9, 0, 0, 0) {
		t.Errorf("%+v, want the hits of the index", got.Hits)
	}
}

// TestWeightsGetNoCredit: their formulas are Dynamo's, in a fallback from price too.
func TestWeightsGetNoCredit(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"weights": nil,
		"fallback": func(o *Options) {
			o.Config.Price, o.Estimator = true, &rates{}
		},
	} {
		s := newScheduler(t, change)
		for _, id := range []string{"a", "b"} {
			r := &Request{ID: id, Book: true, Tokens: 100, BlockSize: 16, TrackPrefill: true, Members: fleet(1), Sequence: []kv.SequenceHash{1, 2, 3}}
			if got, err := s.Schedule(t.Context(), r); err != nil || got.Expected() != (index.Hits{}) {
				t.Errorf("%s: request %s has hits %v, %v", name, id, got.Hits, err)
			}
		}
	}
}

// TestACancelledPrefixIsComputedByAnother: a request ends before its prompt is computed. The oldest one that
// awaits the prefix computes it, and later ones await that.
func TestACancelledPrefixIsComputedByAnother(t *testing.T) {
	s := newScheduler(t, func(o *Options) { o.Config.Price, o.Config.Objective, o.Estimator = true, price.Throughput, computes{} })
	members := fleet(1)
	ask := func(id string) {
		t.Helper()
		var prompt []kv.SequenceHash
		for i := range 20 {
			prompt = append(prompt, kv.SequenceHash(1+i))
		}
		r := &Request{ID: id, Book: true, Tokens: 337, BlockSize: 16, TrackPrefill: true, Members: members, Sequence: append(prompt, kv.SequenceHash(100+id[0]))}
		var compared Candidate
		r.Explain = func(c *Candidate) { compared = *c }
		got, err := s.Schedule(t.Context(), r)
		if err != nil || got.Hits != (index.Hits{}) || compared.Hits != got.Hits || compared.InFlight != got.InFlight || compared.Price.Cached != float64(16*got.InFlight) {
			t.Fatalf("%+v, compared %+v, %v", got, compared, err)
		}
	}
	pending := func(want int64) {
		t.Helper()
		if got := s.account.Columns().PrefillTokens[0]; got != want {
			t.Errorf("%d tokens are to be computed, want %d", got, want)
		}
	}
	ask("a")
	ask("b")
	ask("c")
	pending(337 + 17 + 17)
	s.Free("a")
	pending(337 + 17)
	ask("d")
	pending(337 + 17 + 17)
	if err := s.MarkPrefillCompleted("b"); err != nil {
		t.Fatal(err)
	}
	pending(17 + 17)
	s.Free("b") // which leaves its blocks
	pending(17 + 17)
}
