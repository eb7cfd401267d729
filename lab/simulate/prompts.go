package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/evict"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// prompt is one request of a workload, as hashes of blocks.
type prompt struct {
	id      string
	session int
	at      time.Duration
	think   time.Duration
	// text has the full blocks of prompt and answer, locals and sequence have their hashes. promptBlocks are
	// those of the prompt.
	text         engine.Chain
	locals       []kv.LocalHash
	sequence     []kv.SequenceHash
	promptBlocks int
	tokens       int
	output       int
	// next is the next turn of the session, and forks the first turns of the sessions that this turn
	// starts. Both begin when the turn has ended.
	next  *prompt
	forks []*prompt
	// starts is true for a prompt that nothing precedes.
	starts bool
	// known are the prompt tokens that some earlier prompt or answer of the workload had: what an
	// infinite cache serves.
	known int
}

// chain is the blocks of a text that grows.
type chain struct {
	blockSize int
	text      engine.Chain
	locals    []kv.LocalHash
	sequence  []kv.SequenceHash
	// numbers are those of the blocks of all chains of a workload.
	numbers map[kv.SequenceHash]uint32
	// tail is the hash of the tokens after the last full block, of which there are fill.
	tail uint64
	fill int
}

// add appends the tokens of a piece. Equal tokens at equal places have equal hashes.
func (c *chain) add(p workload.Piece) {
	for at := 0; at < p.Tokens; {
		n := min(c.blockSize-c.fill, p.Tokens-at)
		c.tail = scatter(scatter(c.tail^p.Stream) ^ uint64(at)<<32 ^ uint64(n))
		c.fill += n
		at += n
		if c.fill == c.blockSize {
			local := kv.LocalHash(c.tail)
			if n := len(c.sequence); n > 0 {
				c.sequence = append(c.sequence, kv.Chain(c.sequence[n-1], local))
			} else {
				c.sequence = kv.AppendSequence(c.sequence, []kv.LocalHash{local})
			}
			c.locals = append(c.locals, local)
			hash := c.sequence[len(c.sequence)-1]
			number, known := c.numbers[hash]
			if !known {
				number = uint32(len(c.numbers))
				c.numbers[hash] = number
			}
			c.text.Blocks = append(c.text.Blocks, kvevent.StoredBlock{Hash: hash, Local: local})
			c.text.Numbers = append(c.text.Numbers, number)
			c.tail, c.fill = 0, 0
		}
	}
}

// fork returns a copy that may grow apart from c.
func (c *chain) fork() *chain {
	f := *c
	f.locals, f.sequence = slices.Clip(f.locals), slices.Clip(f.sequence)
	f.text = engine.Chain{Blocks: slices.Clip(f.text.Blocks), Numbers: slices.Clip(f.text.Numbers)}
	return &f
}

// scatter is a bijection of 64-bit numbers.
func scatter(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// promptsOf returns the prompts of a workload in its order. The error names a fork from a turn that
// does not exist.
func promptsOf(requests []workload.Request, blockSize int) ([]*prompt, error) {
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	// A session's history must exist before the sessions that start from it.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(requests[a].Session, requests[b].Session), cmp.Compare(requests[a].Turn, requests[b].Turn))
	})
	type turn struct{ session, turn int }
	histories := make(map[int]*chain)
	ends := make(map[turn]*chain)
	made := make(map[turn]*prompt)
	forked := make(map[turn]bool)
	for i := range requests {
		if f := requests[i].Fork; f != nil {
			forked[turn{f.Session, f.Turn}] = true
		}
	}
	numbers := make(map[kv.SequenceHash]uint32)
	out := make([]*prompt, len(requests))
	for _, i := range order {
		r := &requests[i]
		c := histories[r.Session]
		if c == nil || r.Whole {
			c = &chain{blockSize: blockSize, numbers: numbers}
		}
		p := &prompt{id: r.ID, session: r.Session, at: r.At, think: r.Think, output: r.OutputTokens}
		if r.Fork != nil {
			end := ends[turn{r.Fork.Session, r.Fork.Turn}]
			if end == nil {
				return nil, fmt.Errorf("request %s: turn %d of session %d, which it forks from, does not come before it", r.ID, r.Fork.Turn, r.Fork.Session)
			}
			c = end.fork()
			from := made[turn{r.Fork.Session, r.Fork.Turn}]
			from.forks = append(from.forks, p)
		} else if before := made[turn{r.Session, r.Turn - 1}]; before != nil {
			before.next = p
		} else {
			p.starts = true
		}
		for _, piece := range r.Pieces {
			c.add(piece)
		}
		p.promptBlocks, p.tokens = len(c.locals), len(c.locals)*blockSize+c.fill
		c.add(workload.Piece{Stream: scatter(uint64(r.Session)<<20 ^ uint64(r.Turn) ^ 0x616e73776572<<8), Tokens: r.OutputTokens})
		n := len(c.text.Numbers)
		p.locals, p.sequence = c.locals[:n:n], c.sequence[:n:n]
		p.text = engine.Chain{Blocks: c.text.Blocks[:n:n], Numbers: c.text.Numbers[:n:n]}
		histories[r.Session] = c
		key := turn{r.Session, r.Turn}
		made[key] = p
		if forked[key] {
			ends[key] = c.fork()
		}
		out[i] = p
	}
	markKnown(out, blockSize, len(numbers))
	return out, nil
}

// markKnown sets known of each prompt. The prompts have so many different blocks.
func markKnown(prompts []*prompt, blockSize, blocks int) {
	seen := make([]bool, blocks)
	for _, p := range prompts {
		at := 0
		for at < p.promptBlocks {
			if !seen[p.text.Numbers[at]] {
				break
			}
			at++
		}
		p.known = min(at*blockSize, p.tokens-1)
		for _, n := range p.text.Numbers {
			seen[n] = true
		}
	}
}

// Accesses returns the prompts of a workload as accesses to a cache, in the order of their times: a turn
// begins after its think time and an answer of twenty milliseconds a token.
func Accesses(requests []workload.Request, blockSize int) ([]evict.Access, error) {
	prompts, err := promptsOf(requests, blockSize)
	if err != nil {
		return nil, err
	}
	type timed struct {
		at time.Duration
		p  *prompt
	}
	var order []timed
	var begin func(p *prompt, at time.Duration)
	begin = func(p *prompt, at time.Duration) {
		for ; p != nil; p = p.next {
			order = append(order, timed{at, p})
			at += time.Duration(p.output) * 20 * time.Millisecond
			for _, f := range p.forks {
				begin(f, at+f.think)
			}
			if p.next != nil {
				at = max(at+p.next.think, p.next.at)
			}
		}
	}
	for _, p := range prompts {
		if p.starts {
			begin(p, p.at)
		}
	}
	slices.SortStableFunc(order, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	out := make([]evict.Access, len(order))
	for i, o := range order {
		out[i] = evict.Access{Sequence: o.p.sequence, Prompt: o.p.promptBlocks}
	}
	return out, nil
}
