package ttft

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// prompt is a request.
type prompt struct {
	at     time.Duration
	locals []kv.LocalHash
	// sequence has the hashes of the same blocks with their prefixes.
	sequence []kv.SequenceHash
	tokens   int
	output   int // tokens of the answer
}

// traffic is what users do.
type traffic struct {
	seed     uint64
	length   time.Duration // during which sessions begin
	sessions float64       // that begin in a second
	// systems and documents are how many system prompts and documents there are; the
	// first ones are asked for most.
	systems, documents int
	// long is the share of sessions that are about a document.
	long float64
	// think is the mean time between the turns of a session.
	think time.Duration
}

// prompts returns all that users will ask, in the order of time. A session is a system
// prompt, perhaps a document, and turns each of which repeats all that came before.
func (t *traffic) prompts() []*prompt {
	rng := rand.New(rand.NewPCG(t.seed, 1))
	text := func(kind, number, blocks int) []kv.LocalHash {
		own := rand.New(rand.NewPCG(uint64(kind), uint64(number)))
		return fresh(own, blocks)
	}
	var all []*prompt
	for at := 0.0; ; {
		at += rng.ExpFloat64() / t.sessions
		if seconds(at) >= t.length {
			break
		}
		n := skewed(rng, t.systems)
		history := text(1, n, 8+n*5%40)
		if rng.Float64() < t.long {
			d := skewed(rng, t.documents)
			history = slices.Concat(history, text(2, d, 60+d*37%200))
		}
		when := at
		for range 1 + min(9, int(rng.ExpFloat64()*3)) {
			history = slices.Concat(history, fresh(rng, 2+rng.IntN(10)))
			p := &prompt{at: seconds(when), locals: history, sequence: kv.AppendSequence(nil, history), output: 50 + rng.IntN(300)}
			p.tokens = len(history)*blockSize + 1 + rng.IntN(blockSize-1)
			all = append(all, p)
			history = slices.Concat(history, fresh(rng, 1+p.output/blockSize))
			when += rng.ExpFloat64()*t.think.Seconds() + 10
		}
	}
	slices.SortStableFunc(all, func(a, b *prompt) int { return int(a.at - b.at) })
	return all
}

func fresh(rng *rand.Rand, blocks int) []kv.LocalHash {
	out := make([]kv.LocalHash, blocks)
	for i := range out {
		out[i] = kv.LocalHash(rng.Uint64())
	}
	return out
}

// skewed draws one of n, the i-th with a chance like 1/i.
func skewed(rng *rand.Rand, n int) int {
	return int(math.Exp(rng.Float64()*math.Log(float64(n)+1))) - 1
}
