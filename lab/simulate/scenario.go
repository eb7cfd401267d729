package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/report"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// Hardware is what the machines of a scenario can do. No router is told but of Blocks and Budget.
type Hardware struct {
	Steps *engine.Steps
	// Speeds of the workers; 1 is the recorded engine. PerNode workers share the tiers of a node.
	Speeds  []float64
	PerNode int
	// BlockSize is in tokens, Blocks, HostBlocks and DiskBlocks are capacities.
	BlockSize, Blocks, HostBlocks, DiskBlocks int
	Budget, MaxRunning                        int
	HostBytes, DiskBytes                      float64
	// The first Prefill workers compute prompts and the others answer; 0 has all do both. KV goes from worker to
	// worker at NetworkBytes a second.
	Prefill             int
	NetworkBytes        float64
	Noise, Tail, Stalls float64
	WarmUp              int
}

// generatedLimits and traceLimits are those of the generated scenarios and of traces, whose prompts are longer.
var generatedLimits, traceLimits = report.Limits{TTFT: 1500 * time.Millisecond, TBT: 60 * time.Millisecond}, report.Limits{TTFT: 2500 * time.Millisecond, TBT: 60 * time.Millisecond}

// Event is what happens to the cluster at a time.
type Event struct {
	At time.Duration
	// Kill ends worker number Worker, Add adds one of speed Speed, Slow multiplies a worker's speed by
	// Factor, Disk multiplies the speed of all disks by Factor.
	Kind   EventKind
	Worker int
	Speed  float64
	Factor float64
}

// EventKind is a kind of Event.
type EventKind uint8

// Kinds of events.
const (
	Kill EventKind = iota
	Add
	Drain
	Slow
	Disk
)

// Scenario is a cluster, its users and what happens.
type Scenario struct {
	Name, About string
	Hardware    Hardware
	Limits      report.Limits
	// Load returns the requests of a seed.
	Load func(seed uint64) ([]workload.Request, error)
	// Duration is how long requests begin. WarmUp is left out of the numbers.
	Duration, WarmUp time.Duration
	// Routers share the requests in turn. Events reach them after Lag.
	Routers int
	Lag     time.Duration
	// Synced routers share their bookings, which reach the others after SyncLag.
	Synced bool
	// SplitBy, if not 0, splits the index among the routers by so many first blocks: see package partition. A request goes to the
	// router of its first blocks.
	SplitBy int
	Events  []Event
	// Spoiled is the share of load reports and of messages of a first token that are dropped, late or wrong.
	Spoiled float64
	// EqualUnshared marks a scenario for the measure of herding: equal workers and no shared prefix.
	EqualUnshared bool
}

// equal returns n workers of the recorded speed.
func equal(n int) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = 1
	}
	return s
}

// machines returns workers in pairs on nodes, with a device for about 200,000 tokens each.
func machines(speeds []float64) Hardware {
	return Hardware{Steps: engine.DefaultSteps(), Speeds: speeds, PerNode: 2, BlockSize: 64, Blocks: 3200, HostBlocks: 12_000, DiskBlocks: 60_000,
		Budget: 2048, MaxRunning: 256, HostBytes: 20e9, DiskBytes: 3e9, Noise: 0.04, Tail: 0.003, Stalls: 0.02, WarmUp: 50}
}

// useEngine gives the workers the step times and sizes of a recorded engine. The capacities of the tiers stay.
func (h *Hardware) useEngine(s *engine.Steps) {
	h.Steps = s
	h.Blocks = cmp.Or(s.Blocks*s.BlockSize/h.BlockSize, h.Blocks)
	h.Budget, h.MaxRunning = cmp.Or(s.Budget, h.Budget), cmp.Or(s.MaxRunning, h.MaxRunning)
	if len(s.Ratios) > 0 { // the recording has them all
		h.Noise, h.Tail, h.Stalls, h.WarmUp = 0, 0, 0, 0
	}
}

// blockBytes are the bytes of a block: 128 KiB for a token.
func (h *Hardware) blockBytes() float64 { return float64(h.BlockSize) * 131072 }

// SyncLag is how long a message is on its way to other routers: a network, and a message server. A router sends at most
// one in SyncBatch, as package replica does.
const SyncLag, SyncBatch = time.Millisecond, time.Millisecond

// Span is how long requests of a generated scenario begin.
const Span = 40 * time.Second

// workersOfAll is the number of workers that the rates of the generated scenarios are made for, and
// MaxWorkers bounds others.
const workersOfAll, MaxWorkers = 8, 4096

// Scenarios returns the generated scenarios with workersOfAll workers or more. Rates grow with them.
func Scenarios(workers int) []Scenario { return generated(workers, Span) }

// generated returns the scenarios with requests that begin within span.
func generated(workers int, span time.Duration) []Scenario {
	scale := float64(workers) / workersOfAll
	chat := func(rate float64, change func(*workload.Options)) func(uint64) ([]workload.Request, error) {
		return func(seed uint64) ([]workload.Request, error) {
			o := workload.Options{Seed: seed, SystemPrompts: 40, Rate: rate * scale,
				System: workload.Lengths{Median: 1200, Sigma: 0.7, Min: 100, Max: 6000},
				User:   workload.Lengths{Median: 300, Sigma: 1.1, Min: 8, Max: 6000},
				Output: workload.Lengths{Median: 180, Sigma: 0.7, Min: 4, Max: 1200},
				Turns:  4, MaxTurns: 12, Think: 8 * time.Second}
			if change != nil {
				change(&o)
			}
			o.Requests = int(o.Rate * span.Seconds() * o.Turns * 0.9)
			return workload.Generate(o)
		}
	}
	unshared := func(o *workload.Options) {
		o.SystemPrompts, o.SystemZipf = min(int(100_000*scale), 10_000_000), 0.001
		o.System = workload.Lengths{Median: 1500, Sigma: 1, Min: 64, Max: 12_000}
		o.Turns = 1
	}
	agents := func(seed uint64) ([]workload.Request, error) {
		return workload.Agents(workload.AgentOptions{Seed: seed, Sessions: int(3 * scale * span.Seconds()), Rate: 2 * scale, Systems: 6,
			System: workload.Lengths{Median: 9000, Sigma: 0.3, Min: 3000, Max: 16_000},
			Tool:   workload.Lengths{Median: 500, Sigma: 1.3, Min: 16, Max: 12_000},
			Output: workload.Lengths{Median: 110, Sigma: 0.8, Min: 8, Max: 1000},
			Turns:  14, MaxTurns: 40, Forks: 0.08, Tools: 3 * time.Second})
	}
	base := func(name, about string, h Hardware, load func(uint64) ([]workload.Request, error)) Scenario {
		return Scenario{Name: name, About: about, Hardware: h, Limits: generatedLimits, Load: load, Duration: span, WarmUp: span / 4, Routers: 1}
	}
	same := machines(equal(workers))
	slowDisk := same
	slowDisk.HostBlocks, slowDisk.DiskBytes = 2500, 1.5e9
	divided := same
	divided.Prefill, divided.NetworkBytes = max(1, 3*workers/workersOfAll), 12.5e9
	all := []Scenario{
		base("chat", "conversations with shared system prompts", same, chat(20, nil)),
		base("chat-busy", "the same at 1.6 times the rate", same, chat(32, nil)),
		base("documents", "questions about long documents", same, chat(9, documents)),
		base("agents", "agents with tools and helpers", same, agents),
		base("forks", "conversations that continue one new history at nearly the same time", same, forks(4*scale, span)),
		base("unshared", "prompts that share nothing, equal workers", same, chat(36, unshared)),
		base("speeds", "workers of two speeds", machines(slices.Repeat([]float64{1, 0.4}, workers/2+1)[:workers]), chat(18, nil)),
		base("disk", "host memory too small, and a disk that becomes ten times slower", slowDisk, chat(7, documents)),
		base("churn", "two workers die, two join and start slowly, one slows down", same, chat(18, nil)),
		base("routers", "four routers that know of one another only by reports", same, chat(22, nil)),
		base("synced", "the same routers sharing their bookings", same, chat(22, nil)),
		base("poisoned", "a third of the reports and of the times to a first token are dropped, late or wrong", same, chat(22, nil)),
		base("split", "three workers compute prompts and five answer, with a network of 12.5 GB/s between them", divided, chat(12, questions)),
		base("burst", "seven times the rate for six seconds", same, burst(chat(14, nil), chat(90, nil))),
	}
	for i := range all {
		all[i].complicate()
	}
	return all
}

// documents has prompts about long documents.
func documents(o *workload.Options) {
	o.SystemPrompts, o.SystemZipf = 120, 0.9
	o.System = workload.Lengths{Median: 12_000, Sigma: 0.6, Min: 2000, Max: 50_000}
	o.Output = workload.Lengths{Median: 120, Sigma: 0.6, Min: 4, Max: 600}
}

// questions has long turns.
func questions(o *workload.Options) {
	o.User = workload.Lengths{Median: 1200, Sigma: 0.9, Min: 64, Max: 12_000}
}

// complicate adds to a scenario what happens to its cluster.
func (s *Scenario) complicate() {
	switch s.Name {
	case "unshared":
		s.EqualUnshared = true
	case "disk":
		s.Events = []Event{{At: 22 * time.Second, Kind: Disk, Factor: 0.1}}
	case "churn":
		for first := 0; first+workersOfAll <= len(s.Hardware.Speeds); first += workersOfAll {
			s.Events = append(s.Events, Event{At: 18 * time.Second, Kind: Kill, Worker: first}, Event{At: 21 * time.Second, Kind: Add, Speed: 1},
				Event{At: 26 * time.Second, Kind: Slow, Worker: first + 3, Factor: 0.4}, Event{At: 32 * time.Second, Kind: Drain, Worker: first + 5},
				Event{At: 35 * time.Second, Kind: Add, Speed: 1})
		}
		s.Hardware.WarmUp = 400
	case "poisoned":
		s.Spoiled = 1. / 3
	case "routers", "synced":
		s.Routers, s.Lag = 4, 50*time.Millisecond
		s.Synced = s.Name == "synced"
	}
}

// burst returns the requests of one workload, and those of another that begin in ten seconds in the
// middle.
func burst(calm, wild func(uint64) ([]workload.Request, error)) func(uint64) ([]workload.Request, error) {
	return func(seed uint64) ([]workload.Request, error) {
		requests, err := calm(seed)
		if err != nil {
			return nil, err
		}
		more, err := wild(seed + 1000)
		if err != nil {
			return nil, err
		}
		const begin, end, apart = 24 * time.Second, 30 * time.Second, 1 << 20
		started := make(map[int]bool)
		for _, r := range more {
			if r.At+begin >= end && !started[r.Session] {
				continue
			}
			started[r.Session] = true
			r.ID, r.Session, r.At = "b"+r.ID, r.Session+apart, r.At+begin
			requests = append(requests, r)
		}
		return requests, nil
	}
}

// forksApart is the mean time between two conversations of a group.
const forksApart = 100 * time.Millisecond

// forks returns groups of four conversations that continue one history, which no engine has yet, and begin
// nearly at the same time. rate groups begin in a second. Later turns come when the turn before has ended.
func forks(rate float64, span time.Duration) func(uint64) ([]workload.Request, error) {
	return func(seed uint64) (all []workload.Request, err error) {
		rng := rand.New(rand.NewPCG(seed, 30))
		exp := func(mean time.Duration) time.Duration { return time.Duration(rng.ExpFloat64() * float64(mean)) }
		for at, group := exp(time.Duration(float64(time.Second)/rate)), 0; at < span; group++ {
			history := workload.Piece{Stream: workload.StreamOf(fmt.Sprint("history ", seed, group)), Tokens: 2000 + rng.IntN(8000)}
			begin := at
			for n := range 4 {
				session := 4*group + n
				due := begin
				for turn := range 3 {
					r := workload.Request{ID: fmt.Sprintf("f%d-t%d", session, turn), Session: session, Turn: turn, At: due, OutputTokens: 20 + rng.IntN(200),
						Pieces: []workload.Piece{{Stream: workload.StreamOf(fmt.Sprint("question ", seed, session, turn)), Tokens: 50 + rng.IntN(400)}}}
					if turn == 0 {
						r.Pieces = append([]workload.Piece{history}, r.Pieces...)
					} else {
						r.Think = exp(2 * time.Second)
						due += r.Think
						r.At = due
					}
					all = append(all, r)
				}
				begin += exp(forksApart)
			}
			at += exp(time.Duration(float64(time.Second) / rate))
		}
		return all, nil
	}
}
