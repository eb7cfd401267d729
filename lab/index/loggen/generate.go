package loggen

import (
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

// Generate returns a log of requests to simulated engines, as the words that oplog.Save writes.
// The right answers to its queries come from a Twin, which is simple and slow.
func Generate(o Options) ([]uint64, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	b, err := oplog.NewBuilder(o.Engines, blockTokens)
	if err != nil {
		return nil, err
	}
	g := &generator{builder: b, twin: NewTwin(o.Engines)}
	engines := make([]*Engine, o.Engines)
	for i := range engines {
		engines[i] = NewEngine(o, uint64(i))
	}
	traffic, route := NewTraffic(o), rand.New(rand.NewPCG(o.Seed, 0))
	for range o.Requests {
		locals := traffic.Next()
		g.seq = kv.AppendSequence(g.seq[:0], locals)
		score, best, to := sum(g.twin.Depths(g.seq))
		g.answers.Score, g.answers.Best = g.answers.Score+score, g.answers.Best+best
		if route.Float64() >= o.Affinity {
			to = route.IntN(o.Engines)
		}
		g.engine = uint32(to)
		if err := b.Query(g.engine, locals); err != nil {
			return nil, err
		}
		if err := engines[to].Serve(locals, g.seq, g); err != nil {
			return nil, err
		}
	}
	return g.finish()
}

// generator records the changes of one engine after the other.
type generator struct {
	builder *oplog.Builder
	twin    *Twin
	engine  uint32
	answers oplog.Answers
	seq     []kv.SequenceHash
}

// Stored implements Sink.
func (g *generator) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) error {
	if err := g.twin.Store(g.engine, blocks); err != nil {
		return err
	}
	return g.builder.Stored(g.engine, parent, blocks)
}

// Removed implements Sink.
func (g *generator) Removed(hashes []kv.SequenceHash) error {
	if err := g.twin.Remove(g.engine, hashes); err != nil {
		return err
	}
	return g.builder.Removed(g.engine, hashes)
}

// finish asks the twin every query again on the last state, and returns the words of the log with
// all answers.
func (g *generator) finish() ([]uint64, error) {
	l, err := oplog.Parse(g.builder.Finish(g.answers))
	if err != nil {
		return nil, err
	}
	for _, r := range l.Records() {
		if r.Op != oplog.Query {
			continue
		}
		g.seq = kv.AppendSequence(g.seq[:0], r.Locals)
		score, best, _ := sum(g.twin.Depths(g.seq))
		g.answers.FinalScore, g.answers.FinalBest = g.answers.FinalScore+score, g.answers.FinalBest+best
	}
	g.answers.Memberships, g.answers.Distinct = g.twin.Memberships(), g.twin.Distinct()
	return g.builder.Finish(g.answers), nil
}
