package decisions

import (
	"slices"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Bounds of a Log.
const (
	// MaxDecisions bounds the decisions that a Log keeps, MaxCandidates the candidates of one.
	MaxDecisions, MaxCandidates = 128, 16
	// maxWanted bounds the decisions of a second whose candidates are wanted.
	maxWanted = 20
	// watchTime is how long candidates are wanted after a look.
	watchTime = 10 * time.Second
	// maxUnvalued bounds the workers whose hits wait for Value.
	maxUnvalued = 1 << 16
)

// Decision is a decision for a request that was booked or sent.
type Decision struct {
	Request, Model string
	At             time.Time
	// Waited is how long the request was in the queue.
	Waited time.Duration
	// Tokens is the length of the prompt, BlockSize the tokens of a block.
	Tokens, BlockSize int
	Quality           string
	// Mode is that of schedule.Result: how workers were compared.
	Mode string
	// Chosen is the worker of the request. Others are the best of the others, by ascending cost.
	// Compared counts all that were compared; 0 when only the chosen one is known.
	Chosen   schedule.Candidate
	Others   []schedule.Candidate
	Compared int
}

// Cost is what computing a prompt takes a worker: seconds for each token, and for each pair of a token
// with one that it attends to. Both are 0 when unknown.
type Cost struct{ Token, Pair float64 }

// worth are hits that wait for Value: their tokens, and the pairs that were not computed.
type worth struct {
	tokens uint64
	pairs  float64
}

// Sums are over all decisions of a Log.
type Sums struct {
	Decisions, PromptTokens uint64
	// HitTokens are the prompt tokens that the chosen workers had, by tier.
	HitTokens [kv.NumTiers]uint64
	// SavedSeconds is the time that computing the hits would have taken the chosen workers, of
	// hits on workers whose Cost was known. UnvaluedTokens are the other hits.
	SavedSeconds   float64
	UnvaluedTokens uint64
}

// Log has the last decisions. The zero value is ready for use.
type Log struct {
	mu      sync.Mutex
	entries []Decision // a ring once it is full
	next    int
	sums    Sums
	// unvalued are the hits of workers since the last Value.
	unvalued map[kv.Worker]worth
	// watched is the time of the last look. wanted counts the candidates that were wanted in the
	// second that began at second.
	watched, second time.Time
	wanted          int
}

// Wants reports whether the candidates of the next decision are wanted.
func (l *Log) Wants(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.watched) >= watchTime { // true before the first look
		return false
	}
	if now.Sub(l.second) >= time.Second {
		l.second, l.wanted = now, 0
	}
	l.wanted++
	return l.wanted <= maxWanted
}

// Add adds a decision. A full Log drops the oldest one. result is what the scheduler chose, compared
// the candidates by ascending cost; nil without them. Add fills in the fields of both.
func (l *Log) Add(d Decision, result *schedule.Result, compared []schedule.Candidate) {
	d.Mode, d.Compared = result.Mode, len(compared)
	d.Chosen, d.Others = split(result, compared)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums.Decisions++
	l.sums.PromptTokens += uint64(d.Tokens)
	left := d.Tokens
	var hits uint64
	for t, blocks := range result.Hits {
		n := min(left, int(blocks)*d.BlockSize)
		left -= n
		l.sums.HitTokens[t] += uint64(n)
		hits += uint64(n)
	}
	l.countLocked(result.Worker, hits)
	if len(l.entries) < MaxDecisions {
		l.entries = append(l.entries, d)
		return
	}
	l.entries[l.next] = d
	l.next = (l.next + 1) % MaxDecisions
}

// countLocked adds hits to those that wait for Value.
func (l *Log) countLocked(w kv.Worker, hits uint64) {
	if hits == 0 {
		return
	}
	if _, known := l.unvalued[w]; !known && len(l.unvalued) >= maxUnvalued {
		l.sums.UnvaluedTokens += hits
		return
	}
	if l.unvalued == nil {
		l.unvalued = make(map[kv.Worker]worth)
	}
	u := l.unvalued[w]
	// The hits are the beginning of the prompt, so that they attend to one another alone.
	l.unvalued[w] = worth{u.tokens + hits, u.pairs + float64(hits)*float64(hits)/2}
}

// split returns the chosen candidate, and at most MaxCandidates-1 others in their order. The chosen
// one lacks the worker's load when it was not compared.
func split(result *schedule.Result, compared []schedule.Candidate) (chosen schedule.Candidate, others []schedule.Candidate) {
	at := slices.IndexFunc(compared, func(c schedule.Candidate) bool { return c.Worker == result.Worker })
	if at < 0 {
		return schedule.Candidate{Worker: result.Worker, Hits: result.Hits, Effective: result.Effective, CachedTokens: result.CachedTokens, InFlight: result.InFlight,
			Cost: result.Cost, Prefill: result.Prefill, Decode: result.Decode, Weight: result.Weight, TaintFactor: result.TaintFactor,
			Price: result.Price, Objective: result.Objective, Mode: result.Mode}, nil
	}
	for i := range compared {
		if i != at && len(others) < MaxCandidates-1 {
			others = append(others, compared[i])
		}
	}
	return compared[at], others
}

// Recent returns the last decisions, newest first, at most the given number. The caller must not
// change Others. Candidates are wanted for a while afterwards.
func (l *Log) Recent(most int, now time.Time) []Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched = now
	n := len(l.entries)
	out := make([]Decision, 0, min(most, n))
	for i := range cap(out) {
		out = append(out, l.entries[(l.next+n-1-i)%n])
	}
	return out
}

// Value adds the worth of the hits since the last call, and returns the sums. costs are those of
// the workers now.
func (l *Log) Value(costs map[kv.Worker]Cost) Sums {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w, u := range l.unvalued {
		c := costs[w]
		if c == (Cost{}) {
			l.sums.UnvaluedTokens += u.tokens
			continue
		}
		l.sums.SavedSeconds += c.Token*float64(u.tokens) + c.Pair*u.pairs
	}
	clear(l.unvalued)
	return l.sums
}
