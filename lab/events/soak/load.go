package soak

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

const (
	clientsPerEngine = 3
	// Prompts begin like one of documents documents, cut at random, of up to
	// documentBlocks blocks.
	documents, documentBlocks = 48, 40
	vocabulary                = 32000
	maxTail                   = 3 * blockSize
	maxOutput                 = 2 * blockSize
)

// load is clients that send prompts to engines until stop.
type load struct {
	documents [][]uint32
	answered  atomic.Uint64
	failed    atomic.Uint64
	cancel    context.CancelFunc
	clients   sync.WaitGroup
}

// newLoad returns a load whose prompts begin with parts of a few random documents, so that
// engines find cached blocks.
func newLoad(seed uint64) *load {
	rng := rand.New(rand.NewPCG(seed, 1))
	l := &load{cancel: func() {}}
	for range documents {
		doc := make([]uint32, documentBlocks*blockSize)
		for i := range doc {
			doc[i] = rng.Uint32N(vocabulary)
		}
		l.documents = append(l.documents, doc)
	}
	return l
}

// start starts clients that send requests to the engines until stop. at returns the present
// endpoint of engine i, which changes with a restart.
func (l *load) start(ctx context.Context, seed uint64, at func(i int) cluster.Endpoint) {
	ctx, l.cancel = context.WithCancel(ctx)
	for c := range engines * clientsPerEngine {
		rng := rand.New(rand.NewPCG(seed, uint64(c)+2))
		l.clients.Go(func() {
			for ctx.Err() == nil {
				// Requests to a killed engine fail, and so do requests under way when
				// the load ends.
				if err := at(c%engines).Post(ctx, "/v1/generate", l.prompt(rng), nil); err != nil {
					l.failed.Add(1)
					continue
				}
				l.answered.Add(1)
			}
		})
	}
}

// stop ends the load and waits for its clients. It gives up requests under way.
func (l *load) stop() {
	l.cancel()
	l.clients.Wait()
}

// prompt returns a request with the start of a document, of random length, and some random tokens.
func (l *load) prompt(rng *rand.Rand) engine.GenerateRequest {
	doc := l.documents[rng.IntN(len(l.documents))]
	tokens := append([]uint32{}, doc[:1+rng.IntN(len(doc))]...)
	for range rng.IntN(maxTail) {
		tokens = append(tokens, rng.Uint32N(vocabulary))
	}
	return engine.GenerateRequest{Tokens: tokens, OutputTokens: 1 + rng.IntN(maxOutput)}
}
