package workload

import (
	"hash/fnv"
	"reflect"
	"strings"
	"testing"
	"time"
)

func generate(t *testing.T, o Options) []Request {
	t.Helper()
	requests, err := Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	return requests
}

func TestGenerateIsAPureFunctionOfItsOptions(t *testing.T) {
	a := generate(t, Options{Seed: 7})
	if b := generate(t, Options{Seed: 7}); !reflect.DeepEqual(a, b) {
		t.Error("two calls with seed 7 differ")
	}
	if b := generate(t, Options{Seed: 8}); reflect.DeepEqual(a, b) {
		t.Error("seeds 7 and 8 make the same workload")
	}
}

// The workload of a seed is part of every figure that was ever measured with
// it, so its tokens are frozen. They are whole numbers drawn through the
// logarithm: a platform that rounds math.Exp otherwise would show here.
func TestWorkloadOfSeedOneIsFrozen(t *testing.T) {
	sum := fnv.New64a()
	for _, r := range generate(t, Options{Seed: 1, Requests: 50}) {
		for _, token := range r.Prompt(nil) {
			sum.Write([]byte{byte(token), byte(token >> 8)})
		}
		sum.Write([]byte{byte(r.OutputTokens), byte(r.Turn)})
	}
	const want = 0xa93cb805c75beb20
	if got := sum.Sum64(); got != want {
		t.Errorf("workload of seed 1 hashes to %#x, want %#x", got, uint64(want))
	}
}

func TestRequestsComeInOrderAndWithinTheirLimits(t *testing.T) {
	o := Options{Seed: 3, Requests: 5000}.WithDefaults()
	requests := generate(t, o)
	if len(requests) != o.Requests {
		t.Fatalf("%d requests, want %d", len(requests), o.Requests)
	}
	ids := make(map[string]bool)
	turns := make(map[int]int)
	var last time.Duration
	for _, r := range requests {
		if r.At < last {
			t.Fatalf("request %s at %s comes after one at %s", r.ID, r.At, last)
		}
		last = r.At
		if ids[r.ID] {
			t.Fatalf("id %s is used twice", r.ID)
		}
		ids[r.ID] = true
		if r.Turn != turns[r.Session] {
			t.Fatalf("request %s is turn %d, want %d", r.ID, r.Turn, turns[r.Session])
		}
		turns[r.Session]++
		if r.Turn >= o.MaxTurns || r.OutputTokens < o.Output.Min || r.OutputTokens > o.Output.Max {
			t.Fatalf("request %+v is out of bounds", r)
		}
		user := r.Pieces[len(r.Pieces)-1]
		if user.Tokens < o.User.Min || user.Tokens > o.User.Max {
			t.Fatalf("user part of %s has %d tokens", r.ID, user.Tokens)
		}
		if (len(r.Pieces) == 2) != (r.Turn == 0) {
			t.Fatalf("request %s has %d pieces at turn %d", r.ID, len(r.Pieces), r.Turn)
		}
	}
	if mean := float64(len(requests)) / float64(len(turns)); mean < 2.5 || mean > 4 {
		t.Errorf("mean turns per session %.2f, want about 3.3", mean)
	}
}

// The first prompt must be about 2^1.1 times as popular as the second, and the
// few most popular ones must carry most sessions.
func TestSystemPromptsAreSharedByZipf(t *testing.T) {
	requests := generate(t, Options{Seed: 5, Requests: 60000})
	g := newGenerator(Options{Seed: 5}.WithDefaults())
	rank := make(map[Piece]int)
	for k, p := range g.systemPrompts {
		rank[p] = k
	}
	counts := make([]int, len(g.systemPrompts))
	sessions := 0
	for _, r := range requests {
		if r.Turn == 0 {
			counts[rank[r.Pieces[0]]]++
			sessions++
		}
	}
	if ratio := float64(counts[0]) / float64(counts[1]); ratio < 1.9 || ratio > 2.4 {
		t.Errorf("first prompt is %.2f times as popular as the second, want about 2.14 (%v)", ratio, counts)
	}
	if top := counts[0] + counts[1] + counts[2] + counts[3]; top*2 < sessions {
		t.Errorf("the top 4 of %d prompts carry %d of %d sessions, want most", len(counts), top, sessions)
	}
	if counts[len(counts)-1] == 0 {
		t.Error("the least popular prompt was never used")
	}
}

func TestLaterTurnExtendsItsHistory(t *testing.T) {
	r := Request{Pieces: []Piece{{Stream: 9, Tokens: 3}}}
	history := []uint32{5, 6, 7}
	prompt := r.Prompt(history)
	want := Piece{Stream: 9, Tokens: 3}.AppendTokens([]uint32{5, 6, 7})
	if !reflect.DeepEqual(prompt, want) {
		t.Errorf("prompt %v, want %v", prompt, want)
	}
	prompt[0] = 99
	if history[0] != 5 {
		t.Error("building a prompt aliases the history")
	}
}

func TestTokensLieInTheVocabularyAndPiecesOfAStreamAgree(t *testing.T) {
	short := Piece{Stream: 42, Tokens: 10}.AppendTokens(nil)
	long := Piece{Stream: 42, Tokens: 20000}.AppendTokens(nil)
	if !reflect.DeepEqual(short, long[:10]) {
		t.Error("a longer piece of a stream starts otherwise")
	}
	seen := make(map[uint32]bool)
	for _, token := range long {
		if token == 0 || token >= Vocabulary {
			t.Fatalf("token %d is not in 1..%d", token, Vocabulary-1)
		}
		seen[token] = true
	}
	if len(seen) < 14000 {
		t.Errorf("%d distinct tokens of 20,000 draws, want about 14,900", len(seen))
	}
}

func TestLongestAndInputTokensCountHistoryPromptAndOutput(t *testing.T) {
	requests := []Request{
		{Session: 1, Pieces: []Piece{{Tokens: 10}}, OutputTokens: 5},
		{Session: 2, Pieces: []Piece{{Tokens: 20}}, OutputTokens: 5},
		{Session: 1, Turn: 1, Pieces: []Piece{{Tokens: 10}}, OutputTokens: 5},
	}
	if got := Longest(requests); got != 30 {
		t.Errorf("longest %d, want 30", got)
	}
	if got := InputTokens(requests); got != 10+20+25 {
		t.Errorf("input tokens %d, want 55", got)
	}
}

func TestBadOptionIsNamedWithValueAndRange(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Requests: -1}, "workload requests: -1 is not in 1..1e+07"},
		{Options{Turns: 0.5}, "workload turns: 0.5 is not in 1..1000"},
		{Options{Rate: -2}, "workload rate: -2 is not in 0.001..1e+06"},
		{Options{User: Lengths{Median: 5, Min: 9, Max: 3}}, "workload user lengths: "},
	} {
		if _, err := Generate(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("options %+v: error %v, want one with %q", c.o, err, c.want)
		}
	}
}
