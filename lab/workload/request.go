package workload

import (
	"hash/fnv"
	"time"
)

// Vocabulary is the number of token ids that prompts are made of: ids lie in
// 1..Vocabulary-1. Zero is left out because engines like to use it as padding.
const Vocabulary = 32000

// Piece is a run of tokens. Two pieces of one stream start with the same
// tokens, whatever their lengths.
type Piece struct {
	Stream uint64
	Tokens int
}

// AppendTokens appends the piece's tokens to dst.
func (p Piece) AppendTokens(dst []uint32) []uint32 {
	for i := range p.Tokens {
		r := mix(p.Stream + 0x9e3779b97f4a7c15*uint64(i+1))
		dst = append(dst, 1+uint32((r>>32)*(Vocabulary-1)>>32))
	}
	return dst
}

// StreamOf returns the stream that belongs to a name.
func StreamOf(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return mix(h.Sum64())
}

// Request is one prompt to be sent, and when.
type Request struct {
	// ID is unique in its workload and fit for a header or a log line.
	ID string
	// Session groups the turns of one conversation; Turn counts them from 0. A
	// session's turns come one after another, never two at once.
	Session int
	Turn    int
	// At is when the request is due, since the start of the workload. A turn
	// after the first is due at At or Think after the end of the turn before it,
	// whichever is later.
	At    time.Duration
	Think time.Duration
	// Pieces are the new tokens of this request, in order. With Whole they are all of its tokens, and
	// the history of the session does not come before them.
	Pieces []Piece
	Whole  bool
	// Fork is not nil in the first turn of a session that another one started, such as the helper of
	// an agent. The session begins Think after that turn has ended, with its history.
	Fork *Fork
	// OutputTokens is how many tokens the engine is to make, at least 1.
	OutputTokens int
}

// Fork names a turn of another session.
type Fork struct{ Session, Turn int }

// NewTokens returns the number of tokens that the request adds to its history.
func (r *Request) NewTokens() int {
	n := 0
	for _, p := range r.Pieces {
		n += p.Tokens
	}
	return n
}

// Prompt builds the request's tokens in a new slice: history (the prompt and
// the output of the turn before; nil at the first turn), then the request's own
// tokens.
func (r *Request) Prompt(history []uint32) []uint32 {
	dst := make([]uint32, len(history), len(history)+r.NewTokens())
	copy(dst, history)
	for _, p := range r.Pieces {
		dst = p.AppendTokens(dst)
	}
	return dst
}

// Longest returns the greatest number of tokens that any request of the workload
// occupies in an engine: history, prompt and output. Turns must come in order.
func Longest(requests []Request) int {
	longest := 0
	eachPrompt(requests, func(r *Request, prompt int) { longest = max(longest, prompt+r.OutputTokens) })
	return longest
}

// InputTokens returns the number of tokens of all prompts of the workload, histories
// included. Turns must come in order.
func InputTokens(requests []Request) uint64 {
	var sum uint64
	eachPrompt(requests, func(_ *Request, prompt int) { sum += uint64(prompt) })
	return sum
}

// eachPrompt calls f for each request, in order, with the length of its prompt in tokens. The prompt
// includes the prompts and outputs of the session's earlier turns.
func eachPrompt(requests []Request, f func(r *Request, prompt int)) {
	history := make(map[int]int)
	for i := range requests {
		r := &requests[i]
		prompt := history[r.Session] + r.NewTokens()
		f(r, prompt)
		history[r.Session] = prompt + r.OutputTokens
	}
}

// mix returns a bijection of 64-bit numbers that scatters them (the finaliser of
// SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
