package evict

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Scenario is a way in which blocks are asked for.
type Scenario struct {
	Name, About string
	// Accesses returns the accesses of a seed. Equal seeds give equal accesses.
	Accesses func(seed uint64) ([]Access, error)
	// Share of the distinct blocks that the cache has room for. 0 means 0.15.
	Share float64
}

// text returns the first n blocks of a document or conversation.
func text(number uint64, n int) []kv.SequenceHash {
	out := make([]kv.SequenceHash, n)
	h := number*0x9e3779b97f4a7c15 + 1
	for i := range out {
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
		out[i] = kv.SequenceHash(h)
	}
	return out
}

// read is an access that looks all of a text up.
func read(sequence []kv.SequenceHash) Access { return Access{sequence, len(sequence)} }

// zipf draws numbers below n, k in proportion to 1/(k+1)^s.
type zipf struct{ sums []float64 }

func newZipf(n int, s float64) zipf {
	z := zipf{make([]float64, n)}
	sum := 0.0
	for k := range z.sums {
		sum += math.Pow(float64(k+1), -s)
		z.sums[k] = sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) uint64 {
	at := r.Float64() * z.sums[len(z.sums)-1]
	low, high := 0, len(z.sums)-1
	for low < high {
		if mid := (low + high) / 2; z.sums[mid] < at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return uint64(low)
}

// Patterns returns the scenarios that stand for one property each.
func Patterns() []Scenario {
	made := func(name, about string, share float64, fill func(r *rand.Rand) []Access) Scenario {
		return Scenario{Name: name, About: about, Share: share, Accesses: func(seed uint64) ([]Access, error) {
			return fill(rand.New(rand.NewPCG(seed, 7))), nil
		}}
	}
	return []Scenario{
		made("cycle", "80 conversations of 60 blocks in turn, 1.6 times the cache", 0.6, func(*rand.Rand) []Access { return cycle(80, 60, 80) }),
		made("wide-cycle", "300 conversations in turn, 4 times the cache", 0.25, func(*rand.Rand) []Access { return cycle(300, 60, 30) }),
		made("scan", "a hot set that fits, between prompts that come once", 0.01, scan),
		made("skewed", "documents of Zipf popularity", 0.07, skewed),
		made("shift", "a hot set that is another one every 1,500 requests", 0.06, shift),
		made("recent", "conversations that fit while they last, and never come again", 0.05, recent),
		made("waves", "conversations in turn that outgrow the cache, and then all are others", 0.05, func(*rand.Rand) []Access { return waves(14, 40, 8) }),
		made("served", "the runs of make bench-serve, each with other conversations", 0.005, func(*rand.Rand) []Access { return served(60, 8) }),
	}
}

// cycle asks for n conversations in turn; each grows by a block in every round.
func cycle(n, blocks, rounds int) []Access {
	var out []Access
	for round := range rounds {
		for c := range n {
			t := text(uint64(c), blocks+round+1)
			out = append(out, Access{t, blocks + round})
		}
	}
	return out
}

// scan asks for one of 40 documents of 50 blocks in half of the cases, else for a prompt that is new.
func scan(r *rand.Rand) []Access {
	var out []Access
	for i := range 12_000 {
		if i%2 == 0 {
			out = append(out, read(text(uint64(r.IntN(40)), 50)))
		} else {
			out = append(out, read(text(uint64(1e6+i), 30)))
		}
	}
	return out
}

// skewed asks for documents of Zipf popularity, and a question behind each.
func skewed(r *rand.Rand) []Access {
	z := newZipf(1500, 0.9)
	var out []Access
	for range 15_000 {
		d := z.draw(r)
		t := append(text(d, 20+int(d%40)), text(r.Uint64(), 2)...)
		out = append(out, read(t))
	}
	return out
}

// shift asks for documents of Zipf popularity, which are others in every phase.
func shift(r *rand.Rand) []Access {
	z := newZipf(200, 0.8)
	var out []Access
	for i := range 9000 {
		out = append(out, read(text(uint64(i/1500)*1000+z.draw(r), 40)))
	}
	return out
}

// recent has 40 conversations at a time, of 4 to 16 turns, that end and are followed by others.
func recent(r *rand.Rand) []Access {
	type conversation struct {
		number      uint64
		turn, turns int
	}
	var out []Access
	live := make([]conversation, 40)
	next := uint64(0)
	for range 9000 {
		c := &live[r.IntN(len(live))]
		if c.turn == c.turns {
			next++
			*c = conversation{number: next, turns: 4 + r.IntN(13)}
		}
		c.turn++
		out = append(out, Access{text(c.number, 8*c.turn+2), 8 * c.turn})
	}
	return out
}

// waves asks for n conversations in turn, turn after turn, and then for as many others. A turn adds 6 blocks.
func waves(count, n, turns int) []Access {
	var out []Access
	for wave := range count {
		for turn := range turns {
			for c := range n {
				out = append(out, Access{text(uint64(wave*n+c), 20+6*turn+2), 20 + 6*turn})
			}
		}
	}
	return out
}

// served asks for what interop/serve sends, in blocks of 16 tokens: in each run conversations one after the
// other, conversations in turn, groups of four with a common beginning, and groups of four that continue one
// conversation.
func served(runs, size int) []Access {
	var out []Access
	number := uint64(0)
	// talk returns a conversation's sequences by turn. It continues start, or begins with 10 blocks.
	talk := func(turns int, start []kv.SequenceHash) (all [][]kv.SequenceHash) {
		number++
		own := text(number, 10+7*turns)
		if len(start) > 0 {
			own = own[6:] // a question of 4 blocks
		}
		for turn := range turns {
			sequence := slices.Concat(start, own[:len(own)-7*(turns-1-turn)])
			all = append(all, sequence)
		}
		return all
	}
	ask := func(conversations [][][]kv.SequenceHash) {
		for turn := range 4 {
			for _, c := range conversations {
				if turn < len(c) {
					out = append(out, Access{c[turn], len(c[turn]) - 3}) // 3 are the answer's
				}
			}
		}
	}
	for range runs {
		for range size / 2 {
			ask([][][]kv.SequenceHash{talk(4, nil)})
		}
		var turns, shared, forks [][][]kv.SequenceHash
		for range size {
			turns = append(turns, talk(4, nil))
		}
		for range size / 4 {
			number++
			system := text(number, 14)
			trunk := talk(2, nil)
			for range 4 {
				shared = append(shared, talk(3, system))
				forks = append(forks, talk(2, trunk[1]))
			}
			forks[len(forks)-4] = append(trunk, forks[len(forks)-4]...)
		}
		ask(turns)
		ask(shared)
		ask(forks)
	}
	return out
}
