package workload

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// Lengths is a lognormal distribution of token counts, clamped to Min..Max.
// Sigma is the standard deviation of the logarithm: 0 makes every length Median.
type Lengths struct {
	Median, Sigma float64
	Min, Max      int
}

// Options shapes what Generate makes. The zero value of every field is its
// default, given in brackets.
type Options struct {
	// Seed selects the workload; equal options give equal workloads. [0]
	Seed uint64
	// Requests is the number of requests, 1..10,000,000. [400]
	Requests int
	// SystemPrompts is the number of distinct system prompts, 1..100,000; a
	// session starts with one of them. [24]
	SystemPrompts int
	// SystemZipf is the exponent s of their popularity: the k-th most popular is
	// chosen in proportion to 1/k^s. At most 10. [1.1]
	SystemZipf float64
	// System, User and Output are the lengths of system prompts, of what the user
	// adds each turn, and of answers.
	// [median 480, sigma 0.5, 64..1,536], [160, 0.8, 8..1,024], [40, 0.6, 4..160]
	System, User, Output Lengths
	// Turns is the mean number of turns of a session, at least 1 (geometric), and
	// MaxTurns bounds it. [3.5, 6]
	Turns    float64
	MaxTurns int
	// Rate is the mean number of sessions that begin per second (exponential
	// gaps). [10]
	Rate float64
	// Think is the mean time between an answer and the session's next prompt
	// (exponential). [1.5 s]
	Think time.Duration
}

// WithDefaults returns o with every zero field replaced by its default.
func (o Options) WithDefaults() Options {
	setDefault(&o.Requests, 400)
	setDefault(&o.SystemPrompts, 24)
	setDefault(&o.SystemZipf, 1.1)
	setDefault(&o.System, Lengths{Median: 480, Sigma: 0.5, Min: 64, Max: 1536})
	setDefault(&o.User, Lengths{Median: 160, Sigma: 0.8, Min: 8, Max: 1024})
	setDefault(&o.Output, Lengths{Median: 40, Sigma: 0.6, Min: 4, Max: 160})
	setDefault(&o.Turns, 3.5)
	setDefault(&o.MaxTurns, 6)
	setDefault(&o.Rate, 10)
	setDefault(&o.Think, 1500*time.Millisecond)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks the options after WithDefaults; the error names the first bad
// field, its value and its range.
func (o Options) Validate() error {
	for _, c := range []struct {
		name     string
		v        float64
		min, max float64
	}{
		{"requests", float64(o.Requests), 1, 1e7},
		{"system prompts", float64(o.SystemPrompts), 1, 1e7},
		{"system zipf exponent", o.SystemZipf, 0, 10},
		{"turns", o.Turns, 1, 1000},
		{"max turns", float64(o.MaxTurns), 1, 1000},
		{"rate", o.Rate, 1e-3, 1e6},
		{"think time in seconds", o.Think.Seconds(), 0, 86400},
	} {
		if !(c.v >= c.min && c.v <= c.max) {
			return fmt.Errorf("workload %s: %g is not in %g..%g", c.name, c.v, c.min, c.max)
		}
	}
	for _, l := range []struct {
		name string
		Lengths
	}{{"system", o.System}, {"user", o.User}, {"output", o.Output}} {
		if l.Min < 1 || l.Max < l.Min || !(l.Median >= 1) || !(l.Sigma >= 0) {
			return fmt.Errorf("workload %s lengths: %+v: want 1 <= min <= max, median >= 1, sigma >= 0", l.name, l.Lengths)
		}
	}
	return nil
}

// Generate returns o.Requests requests of random sessions, in order of their At (when each is
// due) and, within a session, of their turns. The At of later turns assumes instant answers; see
// Request.
func Generate(o Options) ([]Request, error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g := newGenerator(o)
	requests := make([]Request, 0, o.Requests)
	for session := 0; len(requests) < o.Requests; session++ {
		turns := g.session(session)
		requests = append(requests, turns[:min(len(turns), o.Requests-len(requests))]...)
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return requests, nil
}

// generator draws from one random stream per kind of choice, so that changing
// one parameter leaves the other choices as they were.
type generator struct {
	o                           Options
	arrivals, choices, lengths  *rand.Rand
	systemPrompts               []Piece
	popularity                  []float64 // cumulative, last is 1
	clock                       time.Duration
	systemDomain, sessionDomain uint64
}

// newGenerator draws the system prompts and their popularity. Arrivals, choices and lengths have
// random sources of their own, so that a changed option of one leaves the others as they are.
func newGenerator(o Options) *generator {
	g := &generator{
		o:             o,
		arrivals:      rand.New(rand.NewPCG(o.Seed, 1)),
		choices:       rand.New(rand.NewPCG(o.Seed, 2)),
		lengths:       rand.New(rand.NewPCG(o.Seed, 3)),
		systemDomain:  mix(o.Seed ^ 0x73797374656d),   // "system"
		sessionDomain: mix(o.Seed ^ 0x73657373696f6e), // "session"
	}
	system := rand.New(rand.NewPCG(o.Seed, 4))
	sum := 0.0
	for k := range o.SystemPrompts {
		g.systemPrompts = append(g.systemPrompts, Piece{Stream: g.systemDomain + uint64(k), Tokens: o.System.draw(system)})
		sum += math.Pow(float64(k+1), -o.SystemZipf)
		g.popularity = append(g.popularity, sum)
	}
	for k := range g.popularity {
		g.popularity[k] /= sum
	}
	return g
}

// session returns the requests of session number n, one for each turn. The first turn begins with
// a system prompt, chosen by popularity; each turn adds what the user says.
func (g *generator) session(n int) []Request {
	g.clock += seconds(g.arrivals.ExpFloat64() / g.o.Rate)
	k := sort.SearchFloat64s(g.popularity, g.choices.Float64())
	pieces := []Piece{g.systemPrompts[min(k, len(g.systemPrompts)-1)]}
	at := g.clock
	var turns []Request
	for turn := range g.turns() {
		r := Request{
			ID:           fmt.Sprintf("s%d-t%d", n, turn),
			Session:      n,
			Turn:         turn,
			OutputTokens: g.o.Output.draw(g.lengths),
		}
		if turn > 0 {
			r.Think = seconds(g.arrivals.ExpFloat64() * g.o.Think.Seconds())
			at += r.Think
		}
		r.At = at
		user := Piece{Stream: mix(g.sessionDomain + uint64(n)<<16 + uint64(turn)), Tokens: g.o.User.draw(g.lengths)}
		r.Pieces = append(pieces, user)
		pieces = nil
		turns = append(turns, r)
	}
	return turns
}

// turns draws the length of a session: geometric with mean o.Turns.
func (g *generator) turns() int {
	n := 1
	for n < g.o.MaxTurns && g.choices.Float64() < 1-1/g.o.Turns {
		n++
	}
	return n
}

func (l Lengths) draw(r *rand.Rand) int {
	v := l.Median * math.Exp(l.Sigma*r.NormFloat64())
	return int(min(max(math.Round(v), float64(l.Min)), float64(l.Max)))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
