package loggen

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Traffic makes prompts: sessions that begin with one of a few shared prefixes and
// grow from turn to turn.
type Traffic struct {
	o        Options
	rng      *rand.Rand
	prefixes [][]kv.LocalHash
	sessions []session
	// made counts the blocks of new content. Each has its own hash.
	made uint64
}

type session struct {
	prompt []kv.LocalHash
	// turns is the number of turns to come.
	turns int
}

const (
	// Lengths in blocks of prefixes, of what a session opens with, and of a turn.
	minPrefix, maxPrefix   = 16, 256
	minOpening, maxOpening = 32, 1024
	minTurn, maxTurn       = 8, 256
	meanTurns              = 4
)

// NewTraffic returns the traffic of o, which must be valid.
func NewTraffic(o Options) *Traffic {
	o = o.WithDefaults()
	t := &Traffic{
		o: o, rng: rand.New(rand.NewPCG(o.Seed, 1)),
		prefixes: make([][]kv.LocalHash, o.Prefixes), sessions: make([]session, o.Sessions),
	}
	for i := range t.sessions {
		// Allocated now, so that memory does not grow during traffic.
		t.sessions[i].prompt = make([]kv.LocalHash, 0, o.MaxPrompt+max(o.Align, maxPrefix)+maxOpening)
	}
	for i := range t.prefixes {
		n := t.length(minPrefix, maxPrefix)
		t.prefixes[i] = t.fresh(nil, max(o.Align, n-n%o.Align))
	}
	return t
}

// Next returns the next prompt, at least one block. It is valid until the next call.
func (t *Traffic) Next() []kv.LocalHash {
	s := &t.sessions[t.rng.IntN(len(t.sessions))]
	if s.turns == 0 {
		// The smaller of two random numbers makes some prefixes more common.
		prefix := t.prefixes[min(t.rng.IntN(len(t.prefixes)), t.rng.IntN(len(t.prefixes)))]
		s.prompt = t.fresh(append(s.prompt[:0], prefix...), t.length(minOpening, maxOpening))
		s.turns = 1 + int(t.rng.ExpFloat64()*(meanTurns-1))
	} else {
		keep := len(s.prompt)
		if t.rng.Float64() < t.o.Forks {
			keep = 1 + t.rng.IntN(keep)
		}
		keep -= keep % t.o.Align
		s.prompt = t.fresh(s.prompt[:keep], t.length(minTurn, maxTurn))
	}
	s.turns--
	if len(s.prompt) >= t.o.MaxPrompt {
		s.prompt, s.turns = s.prompt[:t.o.MaxPrompt], 0
	}
	return s.prompt
}

// length draws from low..high, every order of magnitude alike.
func (t *Traffic) length(low, high int) int {
	return int(float64(low) * math.Pow(float64(high)/float64(low), t.rng.Float64()))
}

// fresh appends n blocks that no prompt had before.
func (t *Traffic) fresh(dst []kv.LocalHash, n int) []kv.LocalHash {
	dst = slices.Grow(dst, n)
	for range n {
		t.made++
		dst = append(dst, kv.LocalHash(kv.Digest(kv.SequenceHash(t.o.Seed^t.made<<8), kv.TierDevice)))
	}
	return dst
}
