package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// deviceBlocks is the number of blocks of the engine.
	deviceBlocks = 200_000
	// probeEvery is the least time between two probes. One probe is under way at a
	// time.
	probeEvery = 20 * time.Millisecond
	// askEvery is the pause between an answer of the router and the next question.
	askEvery = 200 * time.Microsecond
	// probePatience bounds a probe.
	probePatience = 5 * time.Second
	// warmUp is the time at the rate before probes count.
	warmUp = time.Second
	// settleTime bounds the wait for the router to know all blocks at the end.
	settleTime = 10 * time.Second
)

// visibleFigures are ages of events.
type visibleFigures struct {
	// ages are ascending; asks is the mean time between two questions.
	ages []time.Duration
	asks time.Duration
	// rate is the measured number of blocks stored a second.
	rate float64
	// gaps is the number of gaps that the router had to repair.
	gaps uint64
}

func (f *visibleFigures) quantile(q float64) time.Duration {
	if len(f.ages) == 0 {
		return 0
	}
	return f.ages[min(len(f.ages)-1, int(q*float64(len(f.ages))))]
}

// probe is a block under way: its tokens, and the time at which its batch was sent.
type probe struct {
	tokens []uint32
	sent   chan time.Time
}

// measureVisible returns the ages of an engine's events when the router answers with them. It
// runs NATS, an agent and a router, and sends events at the rate of o.
func measureVisible(ctx context.Context, r *cluster.Cluster, o *Options) (visibleFigures, error) {
	var f visibleFigures
	if _, err := r.StartNATS(ctx); err != nil {
		return f, err
	}
	agent, err := r.StartAgent(ctx, cluster.AgentOptions{Node: "node-1", HostBytes: 1 << 20, DiskBytes: 0, ExtentBytes: 1 << 20})
	if err != nil {
		return f, err
	}
	router, err := r.StartRouter(ctx)
	if err != nil {
		return f, err
	}
	s, err := openSocket()
	if err != nil {
		return f, err
	}
	defer s.close()
	session, err := proto.DialScheduler(ctx, proto.ClientOptions{Socket: agent.Socket, Hello: hello(s.endpoint)})
	if err != nil {
		return f, err
	}
	defer session.Close()
	if err := s.awaitSubscriber(); err != nil {
		return f, err
	}
	if err := awaitReady(ctx, router); err != nil {
		return f, err
	}
	engine := newSource(deviceBlocks, 2)
	probes := make(chan probe)
	running, stop := context.WithCancel(ctx)
	defer stop()
	g, running := errgroup.WithContext(running)
	var stored uint64
	began := time.Now()
	g.Go(func() (err error) {
		stored, err = feed(running, s, engine, o.Rate, probes)
		return err
	})
	g.Go(func() error {
		defer stop()
		return f.watch(running, router.Endpoint, probes, o.Duration)
	})
	if err := g.Wait(); err != nil {
		return f, err
	}
	f.rate = float64(stored) / time.Since(began).Seconds()
	if err := complete(ctx, agent, router, engine.held()); err != nil {
		return f, err
	}
	var feeds []cluster.RouterFeed
	err = router.Get(ctx, "/v1/feeds", &feeds)
	for _, feed := range feeds {
		f.gaps += feed.Gaps
	}
	return f, err
}

// awaitReady waits until the router is ready, which means that it has heard of the worker.
func awaitReady(ctx context.Context, router *cluster.Router) error {
	var last error
	err := cluster.Until(ctx, settleTime, probeEvery, func() (bool, error) {
		var ready struct{}
		last = router.Get(ctx, "/readyz", &ready)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the router is not ready after the engine connected: %w: %w", err, last)
	}
	return nil
}

// hello returns the frame with which the engine begins its session. endpoint is where it
// publishes events.
func hello(endpoint string) proto.Hello {
	return proto.Hello{
		Engine: "blockyard bench events", Incarnation: kv.RandomID(), WorkerID: 1, EventsEndpoint: endpoint,
		Namespace: kv.Namespace{
			Model: "bench", Weights: "none", DType: "bfloat16", Layers: 1, OuterDim: 1, BlockSize: blockSize, InnerDim: 16,
			DTypeBytes: 2, Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "blockyard-bench-1",
		},
	}
}

// feed sends batches at a rate in blocks per second until ctx ends, and returns the number of
// stored blocks. When a probe waits, the next batch also stores its block, and p.sent gets the
// time.
func feed(ctx context.Context, s *socket, engine *source, rate int, probes <-chan probe) (stored uint64, err error) {
	step := time.Duration(float64(time.Second) * batchBlocks / float64(rate))
	due := time.Now()
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return stored, nil
		}
		for ; !due.After(time.Now()); due = due.Add(step) {
			var p probe
			select {
			case p = <-probes:
			default:
			}
			payload, _ := engine.next(p.tokens)
			if p.sent != nil {
				p.sent <- time.Now()
			}
			if err := s.send(payload); err != nil {
				return stored, err
			}
			stored += batchBlocks
		}
		pace.Reset(time.Until(due))
	}
}

// watch measures ages in f for d after warmUp: it has a block stored and asks the router until
// the router knows the block.
func (f *visibleFigures) watch(ctx context.Context, router cluster.Endpoint, probes chan<- probe, d time.Duration) error {
	began := time.Now()
	var asked time.Duration
	questions := 0
	for n := uint32(0); time.Since(began) < warmUp+d; n++ {
		p := probe{tokens: probeTokens(n), sent: make(chan time.Time, 1)}
		select {
		case probes <- p:
		case <-ctx.Done():
			return nil // the feed has failed and returns why
		}
		sent := <-p.sent
		age, count, err := await(ctx, router, p.tokens, sent)
		if err != nil {
			return err
		}
		if time.Since(began) > warmUp {
			f.ages = append(f.ages, age)
			asked += age
			questions += count
		}
		if err := cluster.Wait(ctx, max(0, probeEvery-age)); err != nil {
			return nil
		}
	}
	f.asks = asked / time.Duration(max(1, questions))
	slices.Sort(f.ages)
	return nil
}

// probeTokens returns the tokens of probe n: no other block begins like it.
func probeTokens(n uint32) []uint32 {
	tokens := make([]uint32, blockSize)
	for i := range tokens {
		tokens[i] = vocabulary + n
	}
	return tokens
}

// loadsQuestion and loadsAnswer are the router's potential_loads.
type loadsQuestion struct {
	Method string   `json:"method"`
	Tokens []uint32 `json:"tokens"`
}

type loadsAnswer struct {
	Loads []struct {
		Prefill int `json:"potential_prefill_tokens"`
	} `json:"loads"`
}

// await asks until the router knows the block of tokens. It returns the age of the
// block since sent, and the number of questions.
func await(ctx context.Context, router cluster.Endpoint, tokens []uint32, sent time.Time) (age time.Duration, asked int, err error) {
	// One token more than the block: a router recomputes the last one in any case.
	question := loadsQuestion{Method: "potential_loads", Tokens: append(slices.Clone(tokens), 0)}
	for {
		var answer loadsAnswer
		if err := router.Post(ctx, "/v1/route", question, &answer); err != nil {
			return 0, 0, err
		}
		asked++
		age = time.Since(sent)
		if len(answer.Loads) == 1 && answer.Loads[0].Prefill < len(tokens) {
			return age, asked, nil
		}
		if age > probePatience {
			return 0, 0, fmt.Errorf("the router does not know of a block that was stored %s ago", age.Round(time.Millisecond))
		}
		if err := cluster.Wait(ctx, askEvery); err != nil {
			return 0, 0, err
		}
	}
}

// complete waits until the router knows exactly the held blocks of the engine. It is an error
// when it does not, or when the agent has lost an event.
func complete(ctx context.Context, agent *cluster.Agent, router *cluster.Router, held int) error {
	var e cluster.EventCounts
	known := 0
	err := cluster.Until(ctx, settleTime, 10*probeEvery, func() (bool, error) {
		var stats cluster.AgentStats
		if err := agent.Get(ctx, "/v1/stats", &stats); err != nil {
			return false, err
		}
		believed, err := router.Believed(ctx)
		known, e = len(believed), stats.Events
		return known == held && e.Gaps == 0 && e.Lost == 0, err
	})
	if errors.Is(err, cluster.ErrTooLong) {
		return fmt.Errorf("the engine holds %d blocks, the router knows %d; gaps %d, lost %d", held, known, e.Gaps, e.Lost)
	}
	return err
}
