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
		prices[k] = price.Price{Wait: wait, TTFT: wait + compute + 1.6*float64(h[kv.TierHost]), Imposed: compute, Cached: cached}
	}
	return "", true
}

// TestAPrefixThatIsComputedIsCreditedWhereItIs: of prompts with a new start in common the first one
// computes the start, and others join it while waiting for it costs less than computing it again. The
// credit ends with the requests, and the index's hits replace it.
func TestAPrefixThatIsComputedIsCreditedWhereItIs(t *testing.T) {
	s := newScheduler(t, func(o *Options) { o.Config.Price, o.Estimator = true, computes{} })
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
		if got := ask(id, 168); got.Worker != first.Worker || got.Hits != hits(8, 0, 0, 0) || got.CachedTokens != 128 {
			t.Errorf("request %s goes to worker %s with hits %v, want %s with the 8 blocks that are computed there", id, got.Worker, got.Hits, first.Worker)
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
	if got, err := s.Schedule(t.Context(), pinned); err != nil || got.Hits != hits(7, 0, 0, 0) {
		t.Errorf("hits %v, %v; want 7 blocks on the device", got.Hits, err)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		s.Free(id)
	}
	if got := ask("f", 168); got.Hits != (index.Hits{}) || got.CachedTokens != 0 {
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
			if got, err := s.Schedule(t.Context(), r); err != nil || got.Hits != (index.Hits{}) {
				t.Errorf("%s: request %s has hits %v, %v", name, id, got.Hits, err)
			}
		}
	}
}
